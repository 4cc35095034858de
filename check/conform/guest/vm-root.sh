# Runs as the first process of a system whose root is on the controller, until somebody kills the machine.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -o remount,rw /
if $b grep -q '^/dev/nvme0n1 / ext4' /proc/mounts; then echo "@ok root is on the controller"; else echo "@bad root is on the controller"; fi
cd / || exit
if $b sha256sum -c -s sums; then echo "@ok the files are there"; else echo "@bad the files are there"; fi
$b dd if=/dev/urandom of=kept bs=1M count=4 2>/dev/null
$b sha256sum kept >kept.sum
$b sync
echo "@kill"
while :; do
    $b dd if=/dev/urandom of=/busy bs=64k count=64 conv=fsync 2>/dev/null
done
