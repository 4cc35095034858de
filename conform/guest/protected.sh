# Protection information as a host sees it. Sourced by iscsi.sh.

# protected_block IN|OUT FILE: one block at address 8 with its eight bytes, checked by the device.
protected_block() {
    case $1 in
    IN) sg_raw --request=520 --outfile="$2" "$disk" 88 20 00 00 00 00 00 00 00 08 00 00 00 01 00 00 ;;
    OUT) sg_raw --send=520 --infile="$2" "$disk" 8a 20 00 00 00 00 00 00 00 08 00 00 00 01 00 00 ;;
    esac
}

# changed AT: the block of /tmp/protected with another byte there, in /tmp/changed.
changed() {
    cp /tmp/protected /tmp/changed
    printf '\132' | dd of=/tmp/changed bs=1 seek="$1" conv=notrunc status=none
}

# denied FILE: the device refuses that block, and says why.
denied() { ! protected_block OUT "$1" 2>&1; }

# A disk of type 1; the kernel has no such transport, so what it writes has its information made by the target.
protected_disk() {
    says "sg_readcap: type 1" "prot_en=1, p_type=0" sg_readcap --16 "$disk"
    says "sg_vpd: all three fields are checked" "GRD_CHK=1.*REF_CHK=1" sg_vpd -p ei "$disk"
    head -c 512 /tmp/random | tr 'Z' 'z' >/tmp/block
    try "a write without protection information" dd if=/tmp/block of="$disk" bs=512 seek=8 oflag=direct
    try "READ with RDPROTECT 1" protected_block IN /tmp/protected
    equal "the block comes with eight bytes" 520 "$(stat -c %s /tmp/protected)"
    equal "its data is what was written" "$(sum </tmp/block)" "$(head -c 512 /tmp/protected | sum)"
    equal "its reference tag is its address" "00 00 00 08" "$(tail -c 4 /tmp/protected | od -An -tx1 | sed 's/^ //')"
    try "WRITE with WRPROTECT 1" protected_block OUT /tmp/protected
    changed 100
    says "another byte of data" "[Gg]uard check failed" denied /tmp/changed
    changed 519
    says "another reference tag" "[Rr]eference tag check failed" denied /tmp/changed
    equal "what was refused was not written" "$(sum </tmp/block)" "$(read_sum "$disk" bs=512 skip=8 count=1)"
    try "sg_verify --vrprotect" sg_verify --16 --vrprotect=1 --lba=8 --count=1 "$disk"
    load "fio on a protected disk" --rw=randwrite --bs=4k --iodepth=8 --size=4M
    file_system ext4 "$disk" mkfs.ext4 -q -F
    try "sg_format: type 3" sg_format --format --fmtpinfo=3 --pfu=1 --quick --wait "$disk"
    says "sg_readcap: type 3" "prot_en=1, p_type=2" sg_readcap --16 "$disk"
    try "sg_format: no protection" sg_format --format --fmtpinfo=0 --quick --wait "$disk"
    says "sg_readcap: none" "prot_en=0" sg_readcap --16 "$disk"
}
