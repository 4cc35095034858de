# Protection information over iSCSI and NVMe. Sourced by iscsi.sh and nvme.sh.

# protected_block IN|OUT FILE: reads or writes the block at LBA 8 with its eight bytes of protection information, which
# the device checks.
protected_block() {
    case $1 in
    IN) sg_raw --request=520 --outfile="$2" "$disk" 88 20 00 00 00 00 00 00 00 08 00 00 00 01 00 00 ;;
    OUT) sg_raw --send=520 --infile="$2" "$disk" 8a 20 00 00 00 00 00 00 00 08 00 00 00 01 00 00 ;;
    esac
}

# changed AT: copies /tmp/protected to /tmp/changed with another byte at this offset.
changed() {
    cp /tmp/protected /tmp/changed
    printf '\132' | dd of=/tmp/changed bs=1 seek="$1" conv=notrunc status=none
}

# denied FILE: prints the error with which the device refuses the block.
denied() { ! protected_block OUT "$1" 2>&1; }

# A disk with protection type 1. The kernel's iSCSI transport does not support it, so the target generates the
# protection information of the kernel's writes.
protected_disk() {
    says "sg_readcap: type 1" "prot_en=1, p_type=0" sg_readcap --16 "$disk"
    says "sg_vpd: guard and reference tag are checked" "GRD_CHK=1.*REF_CHK=1" sg_vpd -p ei "$disk"
    head -c 512 /tmp/random | tr 'Z' 'z' >/tmp/block
    try "a write without protection information" dd if=/tmp/block of="$disk" bs=512 seek=8 oflag=direct
    try "READ with RDPROTECT 1" protected_block IN /tmp/protected
    equal "the block has eight bytes of protection information" 520 "$(stat -c %s /tmp/protected)"
    equal "its data is the data written" "$(sum </tmp/block)" "$(head -c 512 /tmp/protected | sum)"
    equal "its reference tag is its LBA" "00 00 00 08" "$(tail -c 4 /tmp/protected | od -An -tx1 | sed 's/^ //')"
    try "WRITE with WRPROTECT 1" protected_block OUT /tmp/protected
    changed 100
    says "a wrong guard is refused" "[Gg]uard check failed" denied /tmp/changed
    changed 519
    says "a wrong reference tag is refused" "[Rr]eference tag check failed" denied /tmp/changed
    equal "the block is unchanged after refused writes" "$(sum </tmp/block)" "$(read_sum "$disk" bs=512 skip=8 count=1)"
    try "sg_verify --vrprotect" sg_verify --16 --vrprotect=1 --lba=8 --count=1 "$disk"
    load "fio on a protected disk" --rw=randwrite --bs=4k --iodepth=8 --size=4M
    file_system ext4 "$disk" mkfs.ext4 -q -F
    try "sg_format: type 3" sg_format --format --fmtpinfo=3 --pfu=1 --quick --wait "$disk"
    says "sg_readcap: type 3" "prot_en=1, p_type=2" sg_readcap --16 "$disk"
    try "sg_format: no protection" sg_format --format --fmtpinfo=0 --quick --wait "$disk"
    says "sg_readcap: none" "prot_en=0" sg_readcap --16 "$disk"
}

# nvme_block read|write FILE PRINFO TAG: the same block by an NVMe command that bypasses the kernel's block layer.
nvme_block() {
    nvme "$1" "$disk" --start-block=8 --block-count=0 --data-size=520 --data="$2" --prinfo="$3" --ref-tag="$4"
}

# nvme_denied ...: prints the error with which nvme_block ends.
nvme_denied() { ! nvme_block "$@" 2>&1; }

# A namespace with protection information as metadata; the kernel sets PRACT, so the controller inserts and strips it.
protected_namespace() {
    local PORT=$PROTECTED_PORT NQN=$PROTECTED_NQN TARGET=$PROTECTED_TARGET PORTAL=$PROTECTED
    connect "connect to a protected namespace" || return
    says "id-ns: type 1" "^dps *: *(0x)?1$" nvme id-ns "$disk"
    says "id-ns: metadata follows each block" "^flbas *: *0x10$" nvme id-ns "$disk"
    says "id-ns: eight bytes of metadata" "lbaf *0 *: *ms:8 *lbads:9 .*in use" nvme id-ns "$disk"
    head -c 512 /dev/urandom | tr 'Z' 'z' >/tmp/block
    try "a write with PRACT" dd if=/tmp/block of="$disk" bs=512 seek=8 oflag=direct status=none
    equal "a read with PRACT" "$(sum </tmp/block)" "$(read_sum "$disk" bs=512 skip=8 count=1)"
    try "nvme read with all checks" nvme_block read /tmp/protected 7 8
    equal "its data is the data written" "$(sum </tmp/block)" "$(head -c 512 /tmp/protected | sum)"
    equal "its reference tag is its LBA" "00 00 00 08" "$(tail -c 4 /tmp/protected | od -An -tx1 | sed 's/^ //')"
    says "a reference tag other than the LBA is refused" "[Ii]nvalid [Pp]rotection|INVALID_PI" nvme_denied read /tmp/changed 1 9
    try "nvme write with all checks" nvme_block write /tmp/protected 7 8
    changed 100
    says "a wrong guard is refused" "[Gg]uard.[Cc]heck|GUARD_CHECK" nvme_denied write /tmp/changed 7 8
    changed 519
    says "a wrong reference tag is refused" "[Rr]eference.[Tt]ag.[Cc]heck|REFTAG_CHECK" nvme_denied write /tmp/changed 7 8
    equal "the block is unchanged after refused writes" "$(sum </tmp/block)" "$(read_sum "$disk" bs=512 skip=8 count=1)"
    iscsiadm -m node -o new -T "$TARGET" -p "$PORTAL" >/dev/null
    if iscsi_relogin "login to the protected volume over iSCSI"; then
        try "READ with RDPROTECT 1" eval 'disk=$other protected_block IN /tmp/over-iscsi'
        equal "protection information is the same over both protocols" "$(sum </tmp/protected)" "$(sum </tmp/over-iscsi)"
        iscsi_logout
    fi
    try "nvme write-zeroes with PRACT" nvme write-zeroes "$disk" --start-block=8 --block-count=0 --prinfo=8 --ref-tag=8
    try "nvme verify" nvme verify "$disk" --start-block=8 --block-count=0 --prinfo=7 --ref-tag=8
    load "fio on a protected namespace" --rw=randwrite --bs=4k --iodepth=8 --size=4M
    file_system
    try "nvme format with the present protection type" nvme format "$disk" --lbaf=0 --pi=1 --ms=1 --force
    disconnect "disconnect, protected"
    dmesg -C
}
