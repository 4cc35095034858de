# The kernel's NVMe driver with a controller over vfio-user: tools, fio, resets under load, the same volume over iSCSI,
# and a root file system for the next guest.
. /test/lib.sh
. /test/shared.sh
. /test/access.sh
. /test/settings # PORTAL TARGET (iSCSI), and perhaps FULL
disk=/dev/nvme0n1

there() { test -b "$disk"; }
live() { grep -q live /sys/class/nvme/nvme0/state; }

load() {
    local name=$1
    shift
    try "$name" fio --name=load --filename="$disk" --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 \
        --randseed=7 --output-format=terse "$@"
}

# Changes while the guest uses the volume: its size, and its access state (by an initiator). The guest's driver must
# follow without I/O errors.
ana_state_is() { grep -qx "$1" /sys/class/nvme/nvme0/nvme0c0n1/ana_state; }

access_state_test() {
    iscsi_relogin "login to the volume over iSCSI" || return
    growth_test 640
    load_start "$disk"
    try "SET TARGET PORT GROUPS over iSCSI: non-optimized" set_state 1 1 "$other"
    try "ANA state: non-optimized" eventually ana_state_is non-optimized
    try "SET TARGET PORT GROUPS over iSCSI: standby" set_state 1 2 "$other"
    try "ANA state: inaccessible" eventually ana_state_is inaccessible
    sleep 1
    try "SET TARGET PORT GROUPS over iSCSI: optimized" set_state 1 0 "$other"
    try "ANA state: optimized" eventually ana_state_is optimized
    load_end "verified writes over changes of the ANA state: no error"
    equal "no I/O error" "" "$(dmesg | grep 'I/O error')"
    iscsi_logout
}

eventually there || { dmesg | tail -n 20; bad "the kernel sees the disk"; finish; }
ok "the kernel sees the disk"
says "nvme list" "LUNAR VOLUME" nvme list
says "id-ctrl" "oacs *: *0x112" nvme id-ctrl /dev/nvme0
says "log page of effects" "01 00 00 00" nvme get-log /dev/nvme0 --log-id=5 --log-len=4096
says "list-ns" "0x2" nvme list-ns /dev/nvme0
says "interrupts use MSI-X vectors" "nvme0q1" cat /proc/interrupts
try "resv-register" nvme resv-register "$disk" -n 1 --nrkey=0x1234 --rrega=0
says "resv-report" "regctl *: *1" nvme resv-report "$disk" -n 1 -e -d 4096
try "unregister" nvme resv-register "$disk" -n 1 --crkey=0x1234 --rrega=1
refuse "a read beyond the capacity" nvme read "$disk" -s 99999999999 -c 0 -z 512 -d /tmp/read
refuse "an unknown opcode" nvme io-passthru "$disk" --opcode=0x7e --namespace-id=1
load "fio, 4 KiB, 32 deep" --rw=randwrite --bs=4k --iodepth=32 --size=4M
load "fio, 1 MiB, 8 deep: PRP lists" --rw=randwrite --bs=1M --iodepth=8 --size=16M
load "fio, buffers aligned to 512 bytes" --rw=randwrite --bsrange=512-64k --blockalign=512 --iomem_align=512 \
    --iodepth=8 --size=4M
try "set interrupt coalescing" nvme set-feature /dev/nvme0 -f 8 --value=0x0203
says "get interrupt coalescing" "0x0*203" nvme get-feature /dev/nvme0 -f 8
load "fio with interrupt coalescing" --rw=randwrite --bs=4k --iodepth=8 --size=1M
load "fio with interrupt coalescing, 1 deep: interrupts come by the aggregation time" --rw=randwrite --bs=4k --iodepth=1 --size=256k
try "reset interrupt coalescing" nvme set-feature /dev/nvme0 -f 8 --value=0
refuse "an unknown log page" nvme get-log /dev/nvme0 --log-id=0x7f --log-len=512
says "error-log has an entry for it" "sqid[[:space:]]*: *0" nvme error-log /dev/nvme0 -e 1
dmesg -C
fio --name=busy --filename="$disk" --offset=64M --size=64M --ioengine=libaio --direct=1 --rw=randwrite --bs=4k \
    --iodepth=32 --time_based --runtime=12 --output-format=terse >/tmp/busy 2>&1 &
busy=$!
sleep 2
try "reset under load" nvme reset /dev/nvme0
try "the controller is live after the reset" eventually live
sleep 1
try "another reset under load" nvme reset /dev/nvme0
wait $busy
equal "the load succeeds over both resets" 0 $? || tail -n 5 /tmp/busy
load "fio after the resets" --rw=randwrite --bs=4k --iodepth=32 --size=4M
full_only shared_test
full_only access_state_test
try "blkdiscard" blkdiscard "$disk"
equal "discarded blocks read as zeroes" "$(head -c 4M /dev/zero | sum)" \
    "$(dd if="$disk" iflag=direct bs=1M count=4 status=none | sum)"

# The root file system of the next guest.
[ -n "${FULL:-}" ] || finish
try "mkfs.ext4" mkfs.ext4 -q -F "$disk" || finish
mkdir -p /mnt/disk
try "mount" mount "$disk" /mnt/disk || finish
mkdir -p /mnt/disk/bin /mnt/disk/dev /mnt/disk/proc /mnt/disk/sys /mnt/disk/test
cp /busybox/busybox /mnt/disk/bin/busybox
cp /test/vm-root.sh /test/lib.sh /mnt/disk/test/
for number in 1 2 3 4; do head -c 2M /dev/urandom >/mnt/disk/random$number; done
(cd /mnt/disk && sha256sum random? >sums)
try "umount" umount /mnt/disk
try "fsck.ext4" fsck.ext4 -f -n "$disk"
finish
