# Sourced: one volume as an NVMe namespace ("disk") and over iSCSI ("other"), from the same guest.
# settings: PORTAL TARGET

iscsi_disk() {
    local found
    for found in /sys/class/iscsi_session/session*/device/target*/*:*:*:0/block/*; do
        [ -b "/dev/${found##*/}" ] && { echo "/dev/${found##*/}"; return 0; }
    done
    return 1
}

# iscsi_login: the same volume over iSCSI, in "other".
iscsi_login() {
    mkdir -p /etc/iscsi /var/lib/iscsi /run/lock/iscsi
    echo "InitiatorName=iqn.2026-01.io.lunar.conform:guest" >/etc/iscsi/initiatorname.iscsi
    iscsid || bad "iscsid"
    eventually iscsiadm -m iface
    iscsiadm -m node -o new -T "$TARGET" -p "$PORTAL" >/dev/null
    iscsi_again "the same volume over iSCSI"
}

# iscsi_again NAME: once more, after a logout.
iscsi_again() {
    try "$1" iscsiadm -m node -T "$TARGET" -p "$PORTAL" --login || return 1
    eventually iscsi_disk || { bad "no disk over iSCSI"; return 1; }
    other=$(iscsi_disk)
}

# first_range DISK: what GET LBA STATUS says of where the disk begins.
first_range() { sg_get_lba_status --lba=0 "$1" | grep -m1 blocks; }

iscsi_logout() { try "logout" iscsiadm -m node -T "$TARGET" -p "$PORTAL" --logout; }

sized() { [ "$(blockdev --getsize64 "$1")" = "$2" ]; }
rescanned() { echo 1 >"/sys/block/${other##*/}/device/rescan"; sized "$other" "$1"; }
# The unit attention is this command's, or was one of the kernel's own, which says so.
noticed() { sg_turs -v "$other" 2>&1 | grep -qi 'capacity data' || dmesg | grep -qi 'capacity data has changed'; }

# grows MIB: the harness has the volume grow to that, and both sides are told.
grows() {
    local larger=$(($1 << 20))
    dmesg -C
    head -c 1M /dev/urandom >/tmp/random
    echo "@grow"
    try "the host sees by itself that its disk has grown" eventually sized "$disk" $larger
    says "by an asynchronous event" "rescanning namespaces" dmesg
    try "an initiator is told, too" eventually noticed
    try "and sees it" eventually rescanned $larger
    try "the host writes to the end" \
        dd if=/tmp/random of="$disk" bs=1M seek=$(($1 - 1)) count=1 oflag=direct status=none
    equal "which the initiator reads" "$(sum </tmp/random)" "$(read_sum "$other" skip=$(($1 - 1)) count=1)"
}

# One volume by both ways: what one writes the other reads, and what one reserves the other keeps to.
both() {
    iscsi_login || return
    head -c 1M /dev/urandom >/tmp/random
    try "write over NVMe" dd if=/tmp/random of="$disk" bs=1M oflag=direct status=none
    equal "read over iSCSI" "$(sum </tmp/random)" "$(read_sum "$other" count=1)"
    head -c 1M /dev/urandom >/tmp/random
    try "write over iSCSI" dd if=/tmp/random of="$other" bs=1M oflag=direct status=none
    equal "read over NVMe" "$(sum </tmp/random)" "$(read_sum "$disk" count=1)"
    try "discard over NVMe" blkdiscard --length 1M "$disk"
    equal "it is gone over iSCSI" "$(head -c 1M /dev/zero | sum)" "$(read_sum "$other" count=1)"
    says "GET LBA STATUS over iSCSI agrees" "deallocated|unmapped" first_range "$other"
    try "write over NVMe again" dd if=/tmp/random of="$disk" bs=1M oflag=direct status=none
    equal "and GET LBA STATUS agrees again" "" "$(first_range "$other" | grep -E 'deallocated|unmapped')"
    try "a block is marked uncorrectable over NVMe" nvme write-uncor "$disk" -s 8 -c 0
    refuse "it cannot be read over iSCSI" sg_verify --lba=8 --count=1 "$other"
    try "UNMAP over iSCSI" sg_unmap --lba=0 --num=2048 --force "$other"
    equal "it is gone over NVMe" "$(head -c 1M /dev/zero | sum)" "$(read_sum "$disk" count=1)"
    says "GET LBA STATUS agrees after UNMAP" "deallocated|unmapped" first_range "$other"
    try "register over iSCSI" sg_persist --out --register --param-sark=abc "$other"
    try "reserve over iSCSI" sg_persist --out --reserve --param-rk=abc --prout-type=1 "$other"
    refuse "the NVMe host may not write" dd if=/dev/zero of="$disk" bs=4k count=1 oflag=direct status=none
    try "and may read" dd if="$disk" of=/dev/null bs=1M count=1 iflag=direct status=none
    says "the NVMe host sees who it is" "regctl *: *1" nvme resv-report "$disk" -n 1 -e -d 4096
    try "clear over iSCSI" sg_persist --out --clear --param-rk=abc "$other"
    try "the NVMe host may write again" dd if=/dev/zero of="$disk" bs=4k count=1 oflag=direct status=none
    try "register over NVMe" nvme resv-register "$disk" -n 1 --nrkey=0x77 --rrega=0
    try "reserve over NVMe" nvme resv-acquire "$disk" -n 1 --crkey=0x77 --rtype=2 --racqa=0
    refuse "the iSCSI initiator may not write" sg_dd if=/dev/zero of="$other" bs=512 count=8 oflag=sgio
    says "the iSCSI initiator sees the key" "0x77" sg_persist --in --read-keys "$other"
    try "release over NVMe" nvme resv-release "$disk" -n 1 --crkey=0x77 --rtype=2 --rrela=0
    try "unregister over NVMe" nvme resv-register "$disk" -n 1 --crkey=0x77 --rrega=1
    # The one that was told of the reservation asks once more.
    sg_turs -n 3 "$other" >/dev/null 2>&1
    try "the iSCSI initiator may write again" sg_dd if=/dev/zero of="$other" bs=512 count=8 oflag=sgio
    iscsi_logout
    dmesg -C
}
