# A guest that is migrated to another emulator while it reads its disk, which another target serves there from the same
# file. Reads write to the guest's memory: a page that the target does not log is not migrated, and its checksum is wrong.
# Runs with the programs of the initramfs only.
b=/bin/busybox
disk=/dev/vda
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
moved() { [ "$($b cat /sys/class/net/eth0/carrier)" = 0 ]; }
sum() { $b dd if=$disk bs=1M count=8 2>/dev/null | $b sha256sum; }
fresh_sum() {
    echo 3 >/proc/sys/vm/drop_caches
    sum
}

$b ip link set eth0 up
check "the kernel sees the disk" within 120 exists
$b dd if=/dev/urandom of=/random bs=1M count=8 2>/dev/null
$b dd if=/random of=$disk bs=1M conv=fsync 2>/dev/null
before=$($b sha256sum </random)
echo "@move"
rounds=0
wrong=0
until moved || [ $rounds = 2000 ]; do
    [ "$(fresh_sum)" = "$before" ] || wrong=$((wrong + 1))
    $b dd if=/random of=$disk bs=1M seek=$((8 + rounds % 100)) count=1 2>/dev/null
    rounds=$((rounds + 1))
done
check "the guest is migrated" moved
check "all reads during the migration are right ($rounds rounds)" [ $wrong = 0 ]
check "pages that were read before are right" [ "$(sum)" = "$before" ]
check "the other target reads the same" [ "$(fresh_sum)" = "$before" ]
$b dd if=/dev/urandom of=/random bs=1M count=8 2>/dev/null
$b dd if=/random of=$disk bs=1M conv=fsync 2>/dev/null
before=$($b sha256sum </random)
check "data written to the other target is read back" [ "$(fresh_sum)" = "$before" ]
exit $failed
