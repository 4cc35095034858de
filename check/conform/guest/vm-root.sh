# Runs as the first process of a system whose root file system is on the controller, until the virtual machine is
# killed.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -o remount,rw /
if $b grep -q '^/dev/nvme0n1 / ext4' /proc/mounts; then echo "@ok the root file system is on the controller"; else echo "@bad the root file system is on the controller"; fi
cd / || exit
if $b sha256sum -c -s sums; then echo "@ok files are intact"; else echo "@bad files are intact"; fi
$b dd if=/dev/urandom of=kept bs=1M count=4 2>/dev/null
$b sha256sum kept >kept.sum
$b sync
echo "@kill"
while :; do
    $b dd if=/dev/urandom of=/busy bs=64k count=64 conv=fsync 2>/dev/null
done
