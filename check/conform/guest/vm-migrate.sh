# A guest that is migrated to another emulator, and its disk to another target with the same volume: the kernel removes
# the controller before and finds the other one after.
disk=/dev/nvme0n1
. /test/migrate.sh
gone() { [ ! -e /sys/class/nvme/nvme0 ]; }

echo 1 >"$($b readlink -f /sys/class/nvme/nvme0/device)/remove"
check "the kernel removes the controller" within 120 gone
echo "@move"
check "the guest is migrated" within 120 moved
echo 1 >/sys/bus/pci/rescan
check "the kernel finds the other target's controller" within 60 exists
check "data written before is read by the other controller" [ "$(sum)" = "$written" ]
write_random
check "data written to the other controller is read back" [ "$(fresh_sum)" = "$written" ]
exit $failed
