# Tools that the first script leaves out, copies by the target among them.

# blocks DISK SKIP COUNT: the sum of so many MiB.
blocks() { dd if="$1" bs=1M skip="$2" count="$3" iflag=direct status=none | sum; }

# ddpt 0.97 writes the ranges of its token lists one byte early: 256 times as far and as many is what it asks for.
through_file() {
    rm -f /tmp/token
    ddptctl --pt=0,64 --rtf=/tmp/token "$one" && ddptctl --wut=128,64 --rtf=/tmp/token "$to"
}

# copied NAME COMMAND...: a copy of MiB 0 to 7 to MiB 16 on; random data first.
copied() {
    local name=$1 from=$one to=$to
    shift
    head -c 8M /dev/urandom | dd of="$from" bs=1M iflag=fullblock oflag=direct status=none
    dd if=/dev/zero of="$to" bs=1M seek=16 count=8 oflag=direct status=none
    try "$name" "$@" || return
    equal "$name: the data" "$(blocks "$from" 0 8)" "$(blocks "$to" 16 8)"
}

tools_test() {
    local to=$one
    eventually sg_turs "$one"
    try "sg_timestamp --srep" sg_timestamp "$one"
    try "sg_timestamp sets" sg_timestamp --milliseconds=1700000000000 "$one"
    says "sg_timestamp: it runs on" "17000000[0-9]{5}" sg_timestamp "$one"
    try "sg_ident sets" sh -c "printf 'shelf 7' | sg_ident --set $one"
    says "sg_ident" "shelf 7" sg_ident --ascii "$one"
    try "sg_read_buffer: descriptor" sg_read_buffer --mode=desc "$one"
    try "sg_read_buffer: echo descriptor" sg_read_buffer --mode=echo_desc "$one"
    refuse "sg_rep_zones: not a zoned disk" sg_rep_zones "$one"
    refuse "sg_rdac: not such an array" sg_rdac -a "$one"
    try "sg_read" sg_read if="$one" bs=512 count=64 blk_sgio=1
    try "sg_start --start" sg_start --start "$one"
    try "sg_rbuf" sg_rbuf --size=64k "$one"
    says "sg_vpd: third-party copies" "Third party copy|third-party" sg_vpd -p tpc "$one"
    says "sg_xcopy --info" "." sg_copy_results --params "$one"

    copied "sg_xcopy within a disk" sg_xcopy if="$(sg_of "$one")" of="$(sg_of "$one")" bs=512 count=16384 seek=32768
    copied "ddpt by EXTENDED COPY" ddpt if="$one" of="$one" bs=512 count=16384 seek=32768 iflag=xcopy
    copied "ddpt by a token" ddpt if="$one" of="$one" bs=512 skip=0,64 seek=128,64 iflag=odx
    to=$(disk_at default 1 1)
    copied "sg_xcopy to another volume" sg_xcopy if="$(sg_of "$one")" of="$(sg_of "$to")" bs=512 count=16384 seek=32768
    copied "ddpt by a token to another volume" ddpt if="$one" of="$to" bs=512 skip=0,64 seek=128,64 iflag=odx
    copied "ddptctl: a token into a file, and data by it" through_file
    says "ddptctl: what the disk says of copies" "[Rr]OD" ddptctl --info "$one"
    says "ddptctl: all tokens" "." ddptctl --all_toks "$one"
    try "ddpt: zeroes by a token" ddpt if=/dev/null of="$to" bs=512 seek=128,64 oflag=odx rtype=zero
    equal "zeroes are there" "$(head -c 8M /dev/zero | sum)" "$(blocks "$to" 16 8)"
}
