# Two controllers of one subsystem, which are two ways to its volumes: one goes and comes again, then the other, and a load
# goes on.
. /test/lib.sh
# The disk is called by the number of the controller that was first, which either may be.
there() { disk=$(echo /dev/nvme*n1); test -b "$disk"; }
# ways COUNT: so many controllers live.
ways() { [ "$(cat /sys/class/nvme/nvme*/state | grep -c live)" = "$1" ]; }
kept() { (cd /mnt/disk && sha256sum -c --quiet sums kept.sum); }
# away CONTROLLER: as the kernel lets a device go; back: it finds it again.
away() { echo 1 >"$(realpath "/sys/class/nvme/$1/device")/remove"; }
back() { echo 1 >/sys/bus/pci/rescan; }

eventually there || { dmesg | tail -n 20; bad "the kernel sees the disk"; finish; }
try "two controllers" eventually ways 2 || { nvme list-subsys; dmesg | tail -n 20; finish; }
equal "of one subsystem" 1 "$(ls /sys/class/nvme-subsystem | wc -l)"
mkdir -p /mnt/disk
try "mount" mount "$disk" /mnt/disk || finish
fio --name=busy --filename=/mnt/disk/load --size=16M --ioengine=libaio --direct=1 --rw=randrw --bs=4k --iodepth=8 \
    --verify=crc32c --time_based --runtime=15 --output-format=terse >/tmp/busy 2>&1 &
busy=$!
sleep 2
try "one controller goes" away nvme0
try "and one is left" eventually ways 1
try "the disk is there by the other" there
try "and its files" kept
try "it comes again" back
try "and there are two" eventually ways 2
try "the other goes" away nvme1
try "and one is left again" eventually ways 1
try "a reset of the only one" nvme reset "/dev/$(basename "$(ls -d /sys/class/nvme/nvme*)")"
wait $busy
equal "the load went on to its end, and read what it wrote" 0 $? || tail -n 5 /tmp/busy
try "the files are there" kept
rm -f /mnt/disk/load
umount /mnt/disk
finish
