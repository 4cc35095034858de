# A machine that moves to another emulator, and its disk to another target that has the same volume: the kernel lets the
# controller go before, and finds the other's after. Only what the first file system has.
b=/bin/busybox
disk=/dev/nvme0n1
failed=0
check() {
    name=$1
    shift
    if "$@"; then echo "@ok $name"; else echo "@bad $name"; failed=1; fi
}
# within SECONDS COMMAND...
within() {
    left=$(($1 * 10))
    shift
    until "$@" 2>/dev/null; do
        left=$((left - 1))
        [ $left -gt 0 ] || return 1
        $b sleep 0.1
    done
}
there() { [ -b $disk ]; }
gone() { [ ! -e /sys/class/nvme/nvme0 ]; }
moved() { [ "$($b cat /sys/class/net/eth0/carrier)" = 0 ]; }
sum() { $b dd if=$disk bs=1M count=8 2>/dev/null | $b sha256sum; }

$b ip link set eth0 up
check "the kernel sees the disk" within 120 there
$b dd if=/dev/urandom of=/random bs=1M count=8 2>/dev/null
$b dd if=/random of=$disk bs=1M conv=fsync 2>/dev/null
before=$($b sha256sum </random)
echo 1 >"$($b readlink -f /sys/class/nvme/nvme0/device)/remove"
check "the kernel lets it go" within 120 gone
echo "@move"
check "the machine has moved" within 120 moved
echo 1 >/sys/bus/pci/rescan
check "the other target's controller is there" within 60 there
check "with what was written to the first" [ "$(sum)" = "$before" ]
$b dd if=/dev/urandom of=/random bs=1M count=8 2>/dev/null
$b dd if=/random of=$disk bs=1M conv=fsync 2>/dev/null
before=$($b sha256sum </random)
echo 3 >/proc/sys/vm/drop_caches
check "it is written to as before" [ "$(sum)" = "$before" ]
exit $failed
