# Tools of administrators that iscsi.sh does not run, third-party copies among them.

# blocks DISK SKIP COUNT: the checksum of so many MiB.
blocks() { dd if="$1" bs=1M skip="$2" count="$3" iflag=direct status=none | sum; }

# ddpt 0.97 encodes the ranges of its token lists one byte too early, which multiplies offset and length by 256: request
# accordingly less.
through_file() {
    rm -f /tmp/token
    ddptctl --pt=0,64 --rtf=/tmp/token "$one" && ddptctl --wut=128,64 --rtf=/tmp/token "$to"
}

# copied NAME COMMAND...: two cases: the command copies MiB 0 to 7, which have random data, to MiB 16 to 23.
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
    says "sg_timestamp: the time advances" "17000000[0-9]{5}" sg_timestamp "$one"
    try "sg_ident sets" sh -c "printf 'shelf 7' | sg_ident --set $one"
    says "sg_ident" "shelf 7" sg_ident --ascii "$one"
    try "sg_read_buffer: descriptor" sg_read_buffer --mode=desc "$one"
    try "sg_read_buffer: echo descriptor" sg_read_buffer --mode=echo_desc "$one"
    refuse "sg_rep_zones is refused: the disk is not zoned" sg_rep_zones "$one"
    refuse "sg_rdac is refused: the mode page does not exist" sg_rdac -a "$one"
    try "sg_read" sg_read if="$one" bs=512 count=64 blk_sgio=1
    try "sg_start --start" sg_start --start "$one"
    try "sg_rbuf" sg_rbuf --size=64k "$one"
    says "sg_vpd: third-party copies" "Third party copy|third-party" sg_vpd -p tpc "$one"
    says "sg_xcopy --info" "." sg_copy_results --params "$one"

    copied "sg_xcopy within a disk" sg_xcopy if="$(sg_of "$one")" of="$(sg_of "$one")" bs=512 count=16384 seek=32768
    copied "ddpt with EXTENDED COPY" ddpt if="$one" of="$one" bs=512 count=16384 seek=32768 iflag=xcopy
    copied "ddpt with a ROD token" ddpt if="$one" of="$one" bs=512 skip=0,64 seek=128,64 iflag=odx
    to=$(disk_at default 1 1)
    copied "sg_xcopy to another volume" sg_xcopy if="$(sg_of "$one")" of="$(sg_of "$to")" bs=512 count=16384 seek=32768
    copied "ddpt with a ROD token to another volume" ddpt if="$one" of="$to" bs=512 skip=0,64 seek=128,64 iflag=odx
    copied "ddptctl with a ROD token in a file" through_file
    says "ddptctl --info" "[Rr]OD" ddptctl --info "$one"
    says "ddptctl --all_toks" "." ddptctl --all_toks "$one"
    try "ddpt with the block zero ROD token" ddpt if=/dev/null of="$to" bs=512 seek=128,64 oflag=odx rtype=zero
    equal "the blocks are zero" "$(head -c 8M /dev/zero | sum)" "$(blocks "$to" 16 8)"
}
