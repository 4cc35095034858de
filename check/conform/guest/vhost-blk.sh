# The kernel's virtio-blk driver with a disk over vhost-user: limits, verified writes, discard, write cache, a change of
# size, a file system, and restarts of the target under load.
. /test/lib.sh
. /test/settings # perhaps FULL
disk=/dev/vda
queue=/sys/block/vda/queue

there() { test -b "$disk"; }
has_size() { [ "$(blockdev --getsize64 "$disk")" = "$1" ]; }

load() {
    local name=$1
    shift
    try "$name" fio --name=load --filename="$disk" --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 \
        --randseed=7 --output-format=terse "$@"
}

eventually there || { dmesg | tail -n 20; bad "the kernel sees the disk"; finish; }
ok "the kernel sees the disk"
[ -z "${FEATURES:-}" ] || says "features" "$FEATURES" cat /sys/block/vda/device/features
equal "size" $((512 << 20)) "$(blockdev --getsize64 "$disk")"
equal "logical blocks" 512 "$(cat $queue/logical_block_size)"
equal "write cache" "write back" "$(cat $queue/write_cache)"
says "serial number" "[0-9a-f]" cat /sys/block/vda/serial
load "fio, 4 KiB, 32 deep" --rw=randwrite --bs=4k --iodepth=32 --size=4M
load "fio, 1 MiB, 8 deep" --rw=randwrite --bs=1M --iodepth=8 --size=16M
load "fio, buffers aligned to 512 bytes" --rw=randwrite --bsrange=512-64k --blockalign=512 --iomem_align=512 \
    --iodepth=8 --size=4M
head -c 1M /dev/urandom >/tmp/data
# The test program measures the target.
echo "@idle"
nap 12
try "write" dd if=/tmp/data of="$disk" bs=64k oflag=direct status=none
equal "read back" "$(sum </tmp/data)" "$(read_sum "$disk" count=1)"
try "blkdiscard" blkdiscard -o 0 -l 1M "$disk"
equal "discarded blocks read as zeroes" "$(head -c 1M /dev/zero | sum)" "$(read_sum "$disk" count=1)"
try "write again" dd if=/tmp/data of="$disk" bs=64k oflag=direct status=none
try "write zeroes" blkdiscard -z -o 0 -l 1M "$disk"
equal "they read as zeroes" "$(head -c 1M /dev/zero | sum)" "$(read_sum "$disk" count=1)"
try "write cache off" sh -c "echo 'write through' >/sys/block/vda/cache_type"
load "fio without write cache" --rw=randwrite --bs=4k --iodepth=8 --size=1M
try "write cache on" sh -c "echo 'write back' >/sys/block/vda/cache_type"
load_start "$disk"
echo "@grow"
try "the kernel sees the new size" eventually has_size $((640 << 20))
load_end "verified writes over the change of size: no error"
try "the driver lets go of the device" sh -c "echo virtio1 >/sys/bus/virtio/drivers/virtio_blk/unbind ||
    basename \$(readlink -f /sys/block/vda/device) >/sys/bus/virtio/drivers/virtio_blk/unbind"
refuse "the disk is gone" test -b "$disk"
try "the driver takes it again" sh -c 'for device in /sys/bus/virtio/devices/*; do
    [ "$(cat $device/device)" = 0x0002 ] && basename $device >/sys/bus/virtio/drivers/virtio_blk/bind; done; true'
eventually there || { bad "the disk is back"; finish; }
ok "the disk is back"
[ -z "${RESTARTS:-}" ] || restarts_under_load "$RESTARTS"
try "mkfs.ext4" mkfs.ext4 -q -F "$disk" || finish
mkdir -p /mnt/disk
try "mount" mount -o discard "$disk" /mnt/disk || finish
cp /tmp/data /mnt/disk/data
try "fstrim" fstrim /mnt/disk
try "umount" umount /mnt/disk
try "fsck.ext4" fsck.ext4 -f -n "$disk"
try "mount again" mount -o ro "$disk" /mnt/disk
equal "the file has its data" "$(sum </tmp/data)" "$(sum </mnt/disk/data)"
try "umount again" umount /mnt/disk
finish
