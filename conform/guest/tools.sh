# Tools that the first script leaves out, copies by the target among them.

sum() { sha256sum | cut -d' ' -f1; }
# blocks DISK SKIP COUNT: the sum of so many MiB.
blocks() { dd if="$1" bs=1M skip="$2" count="$3" iflag=direct status=none | sum; }

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
    local to=$one other
    until_true 20 sg_turs "$one"
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

    copied "sg_xcopy within a disk" sg_xcopy if="$one" of="$one" bs=512 count=16384 seek=32768
    copied "ddpt by EXTENDED COPY" ddpt if="$one" of="$one" bs=512 count=16384 seek=32768 iflag=xcopy
    copied "ddpt by tokens" ddpt if="$one" of="$one" bs=512 skip=0,16384 seek=32768,16384 iflag=odx
    other=$(disk_at default 1 1)
    to=$other
    copied "sg_xcopy to another volume" sg_xcopy if="$one" of="$other" bs=512 count=16384 seek=32768
    copied "ddpt by tokens to another volume" ddpt if="$one" of="$other" bs=512 skip=0,16384 seek=32768,16384 iflag=odx
    try "ddpt: token into a file" ddpt if="$one" bs=512 skip=0,16384 iflag=odx rtf=/tmp/token
    dd if=/dev/zero of="$other" bs=1M seek=16 count=8 oflag=direct status=none
    try "ddpt: a disk from the token's file" ddpt of="$other" bs=512 seek=32768,16384 oflag=odx rtf=/tmp/token
    equal "the token's data" "$(blocks "$one" 0 8)" "$(blocks "$other" 16 8)"
    try "ddptctl: what the disk says of copies" ddptctl --info "$one"
    try "ddpt: zeroes by a token" ddpt if=/dev/zero of="$other" bs=512 seek=32768,16384 oflag=odx rtype=zero
    equal "zeroes are there" "$(head -c 8M /dev/zero | sum)" "$(blocks "$other" 16 8)"
}
