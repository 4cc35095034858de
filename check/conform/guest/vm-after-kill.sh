# The guest after one that was killed while it wrote. At its end the target is killed, too, or the controller is
# unplugged.
. /test/lib.sh
disk=/dev/nvme0n1
exists() { test -b "$disk"; }
files_intact() { (cd /mnt/disk && sha256sum -c --quiet sums kept.sum); }
read_fails() { ! timeout 30 dd if="$disk" of=/dev/null bs=4k count=1 skip=$((RANDOM % 1000)) iflag=direct status=none; }

eventually exists || { dmesg | tail -n 20; bad "the kernel sees the disk"; finish; }
fsck.ext4 -p "$disk" >/dev/null 2>&1
try "the file system is consistent" fsck.ext4 -f -n "$disk"
mkdir -p /mnt/disk
try "mount" mount "$disk" /mnt/disk || finish
try "synced files are intact" files_intact
umount /mnt/disk
if [ "${1:-}" = unplug ]; then
    gone() { ! test -b "$disk"; }
    echo "@unplug vm"
    try "the disk disappears after an unplug" eventually gone
    # The emulator removes the device a moment later.
    sleep 3
    finish
fi
# A shorter timeout than the driver's half minute. With native multipath the queue is the path's.
for queue in /sys/block/nvme0*n1/queue/io_timeout; do echo 3000 >"$queue"; done
echo "@restart"
try "reads fail after the target was killed" eventually read_fails
finish
