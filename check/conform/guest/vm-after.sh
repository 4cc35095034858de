# After the machine was killed while it wrote; and then the target is.
. /test/lib.sh
disk=/dev/nvme0n1
there() { test -b "$disk"; }
kept() { (cd /mnt/disk && sha256sum -c --quiet sums kept.sum); }
fails() { ! timeout 30 dd if="$disk" of=/dev/null bs=4k count=1 skip=$((RANDOM % 1000)) iflag=direct status=none; }

eventually there || { dmesg | tail -n 20; bad "the kernel sees the disk"; finish; }
fsck.ext4 -p "$disk" >/dev/null 2>&1
try "the file system is whole" fsck.ext4 -f -n "$disk"
mkdir -p /mnt/disk
try "mount" mount "$disk" /mnt/disk || finish
try "what was synced is there" kept
umount /mnt/disk
if [ "${1:-}" = unplug ]; then
    gone() { ! test -b "$disk"; }
    echo "@unplug vm"
    try "unplugged, the disk is gone" eventually gone
    # The emulator lets go of it a moment later.
    sleep 3
    finish
fi
# Sooner than the half minute that drivers wait. Where there may be several ways, it is a way's.
for way in /sys/block/nvme0*n1/queue/io_timeout; do echo 3000 >"$way"; done
echo "@restart"
try "without its target the disk gives errors" eventually fails
finish
