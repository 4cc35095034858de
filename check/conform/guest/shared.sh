# Sourced: one volume as an NVMe namespace ($disk) and as an iSCSI unit ($other), used by the same guest.

iscsi_disk() {
    local found
    for found in /sys/class/iscsi_session/session*/device/target*/*:*:*:0/block/*; do
        [ -b "/dev/${found##*/}" ] && { echo "/dev/${found##*/}"; return 0; }
    done
    return 1
}

# iscsi_login: sets up the initiator and logs in; the disk is in $other.
iscsi_login() {
    mkdir -p /etc/iscsi /var/lib/iscsi /run/lock/iscsi
    echo "InitiatorName=iqn.2026-01.io.lunar.conform:guest" >/etc/iscsi/initiatorname.iscsi
    iscsid || bad "iscsid"
    eventually iscsiadm -m iface
    iscsiadm -m node -o new -T "$TARGET" -p "$PORTAL" >/dev/null
    iscsi_relogin "login to the same volume over iSCSI"
}

# iscsi_relogin NAME: logs in with the initiator that iscsi_login has set up.
iscsi_relogin() {
    try "$1" iscsiadm -m node -T "$TARGET" -p "$PORTAL" --login || return 1
    eventually iscsi_disk || { bad "no disk over iSCSI"; return 1; }
    other=$(iscsi_disk)
}

# first_range DISK: the first range that GET LBA STATUS reports.
first_range() { sg_get_lba_status --lba=0 "$1" | grep -m1 blocks; }

iscsi_logout() { try "logout" iscsiadm -m node -T "$TARGET" -p "$PORTAL" --logout; }

has_size() { [ "$(blockdev --getsize64 "$1")" = "$2" ]; }
rescan_shows() { echo 1 >"/sys/block/${other##*/}/device/rescan"; has_size "$other" "$1"; }
# Whether the unit attention condition came with this command or with one of the kernel, which logs it.
capacity_attention() { sg_turs -v "$other" 2>&1 | grep -qi 'capacity data' || dmesg | grep -qi 'capacity data has changed'; }

# growth_test MIB: the test program grows the volume to this size; the host and the initiator must notice.
growth_test() {
    local larger=$(($1 << 20))
    dmesg -C
    head -c 1M /dev/urandom >/tmp/random
    echo "@grow"
    try "the NVMe host sees the new size" eventually has_size "$disk" $larger
    says "it rescans after an asynchronous event" "rescanning namespaces" dmesg
    try "the initiator gets a unit attention condition" eventually capacity_attention
    try "the initiator sees the new size" eventually rescan_shows $larger
    try "write the last MiB over NVMe" \
        dd if=/tmp/random of="$disk" bs=1M seek=$(($1 - 1)) count=1 oflag=direct status=none
    equal "read the last MiB over iSCSI" "$(sum </tmp/random)" "$(read_sum "$other" skip=$(($1 - 1)) count=1)"
}

# One volume over both protocols: each reads the other's data and obeys the other's reservations.
shared_test() {
    iscsi_login || return
    head -c 1M /dev/urandom >/tmp/random
    try "write over NVMe" dd if=/tmp/random of="$disk" bs=1M oflag=direct status=none
    equal "read over iSCSI" "$(sum </tmp/random)" "$(read_sum "$other" count=1)"
    head -c 1M /dev/urandom >/tmp/random
    try "write over iSCSI" dd if=/tmp/random of="$other" bs=1M oflag=direct status=none
    equal "read over NVMe" "$(sum </tmp/random)" "$(read_sum "$disk" count=1)"
    try "discard over NVMe" blkdiscard --length 1M "$disk"
    equal "discarded blocks read as zeroes over iSCSI" "$(head -c 1M /dev/zero | sum)" "$(read_sum "$other" count=1)"
    says "GET LBA STATUS over iSCSI: deallocated" "deallocated|unmapped" first_range "$other"
    try "write over NVMe again" dd if=/tmp/random of="$disk" bs=1M oflag=direct status=none
    equal "GET LBA STATUS over iSCSI: mapped" "" "$(first_range "$other" | grep -E 'deallocated|unmapped')"
    try "mark a block uncorrectable over NVMe" nvme write-uncor "$disk" -s 8 -c 0
    refuse "VERIFY of the block over iSCSI fails" sg_verify --lba=8 --count=1 "$other"
    try "UNMAP over iSCSI" sg_unmap --lba=0 --num=2048 --force "$other"
    equal "unmapped blocks read as zeroes over NVMe" "$(head -c 1M /dev/zero | sum)" "$(read_sum "$disk" count=1)"
    says "GET LBA STATUS after UNMAP: deallocated" "deallocated|unmapped" first_range "$other"
    try "register over iSCSI" sg_persist --out --register --param-sark=abc "$other"
    try "reserve over iSCSI" sg_persist --out --reserve --param-rk=abc --prout-type=1 "$other"
    refuse "a write over NVMe is refused" dd if=/dev/zero of="$disk" bs=4k count=1 oflag=direct status=none
    try "a read over NVMe succeeds" dd if="$disk" of=/dev/null bs=1M count=1 iflag=direct status=none
    says "resv-report: one registrant" "regctl *: *1" nvme resv-report "$disk" -n 1 -e -d 4096
    try "clear over iSCSI" sg_persist --out --clear --param-rk=abc "$other"
    try "a write over NVMe succeeds again" dd if=/dev/zero of="$disk" bs=4k count=1 oflag=direct status=none
    try "register over NVMe" nvme resv-register "$disk" -n 1 --nrkey=0x77 --rrega=0
    try "reserve over NVMe" nvme resv-acquire "$disk" -n 1 --crkey=0x77 --rtype=2 --racqa=0
    refuse "a write over iSCSI is refused" sg_dd if=/dev/zero of="$other" bs=512 count=8 oflag=sgio
    says "READ KEYS over iSCSI: the key of the NVMe host" "0x77" sg_persist --in --read-keys "$other"
    try "release over NVMe" nvme resv-release "$disk" -n 1 --crkey=0x77 --rtype=2 --rrela=0
    try "unregister over NVMe" nvme resv-register "$disk" -n 1 --crkey=0x77 --rrega=1
    # Clear the unit attention conditions of the reservation.
    sg_turs -n 3 "$other" >/dev/null 2>&1
    try "a write over iSCSI succeeds again" sg_dd if=/dev/zero of="$other" bs=512 count=8 oflag=sgio
    iscsi_logout
    dmesg -C
}
