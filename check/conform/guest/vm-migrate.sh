# A guest that is migrated to another emulator, and its disk to another target with the same volume: the kernel removes
# the controller before and finds the other one after. Runs with the programs of the initramfs only.
b=/bin/busybox
disk=/dev/nvme0n1
failed=0
check() {
    name=$1
    shift
    if "$@"; then echo "@ok $name"; else echo "@bad $name"; failed=1; fi
}
# within SECONDS COMMAND...: repeats a command until it succeeds.
within() {
    left=$(($1 * 10))
    shift
    until "$@" 2>/dev/null; do
        left=$((left - 1))
        [ $left -gt 0 ] || return 1
        $b sleep 0.1
    done
}
exists() { [ -b $disk ]; }
gone() { [ ! -e /sys/class/nvme/nvme0 ]; }
moved() { [ "$($b cat /sys/class/net/eth0/carrier)" = 0 ]; }
sum() { $b dd if=$disk bs=1M count=8 2>/dev/null | $b sha256sum; }

$b ip link set eth0 up
check "the kernel sees the disk" within 120 exists
$b dd if=/dev/urandom of=/random bs=1M count=8 2>/dev/null
$b dd if=/random of=$disk bs=1M conv=fsync 2>/dev/null
before=$($b sha256sum </random)
echo 1 >"$($b readlink -f /sys/class/nvme/nvme0/device)/remove"
check "the kernel removes the controller" within 120 gone
echo "@move"
check "the guest is migrated" within 120 moved
echo 1 >/sys/bus/pci/rescan
check "the kernel finds the other target's controller" within 60 exists
check "data written before is read by the other controller" [ "$(sum)" = "$before" ]
$b dd if=/dev/urandom of=/random bs=1M count=8 2>/dev/null
$b dd if=/random of=$disk bs=1M conv=fsync 2>/dev/null
before=$($b sha256sum </random)
echo 3 >/proc/sys/vm/drop_caches
check "data written to the other controller is read back" [ "$(sum)" = "$before" ]
exit $failed
