# Common part of the guests that are migrated to another emulator. Works with the programs of the initramfs only. The
# script that reads it has set `disk`.
b=/bin/busybox
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
# The test program takes the network link down when the guest was migrated.
moved() { [ "$($b cat /sys/class/net/eth0/carrier)" = 0 ]; }
sum() { $b dd if=$disk bs=1M count=8 2>/dev/null | $b sha256sum; }
fresh_sum() {
    echo 3 >/proc/sys/vm/drop_caches
    sum
}
# Writes new data to the beginning of the disk, and to the file /random; `written` is its sum.
write_random() {
    $b dd if=/dev/urandom of=/random bs=1M count=8 2>/dev/null
    $b dd if=/random of=$disk bs=1M conv=fsync 2>/dev/null
    written=$($b sha256sum </random)
}

$b ip link set eth0 up
check "the kernel sees the disk" within 120 exists
write_random
