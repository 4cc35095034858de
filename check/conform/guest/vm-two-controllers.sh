# Two controllers of one subsystem are two paths to its volumes: under load, one is removed and added again, then the
# other removed.
. /test/lib.sh
# The disk's name has the number of the controller that was found first, which can be either.
exists() { disk=$(echo /dev/nvme*n1); test -b "$disk"; }
# live_controllers COUNT: whether this many controllers are live.
live_controllers() { [ "$(cat /sys/class/nvme/nvme*/state | grep -c live)" = "$1" ]; }
files_intact() { (cd /mnt/disk && sha256sum -c --quiet sums kept.sum); }
# remove CONTROLLER: the kernel removes its PCI device. rescan: the kernel finds it again.
remove() { echo 1 >"$(realpath "/sys/class/nvme/$1/device")/remove"; }
rescan() { echo 1 >/sys/bus/pci/rescan; }

eventually exists || { dmesg | tail -n 20; bad "the kernel sees the disk"; finish; }
try "two controllers" eventually live_controllers 2 || { nvme list-subsys; dmesg | tail -n 20; finish; }
equal "one subsystem" 1 "$(ls /sys/class/nvme-subsystem | wc -l)"
mkdir -p /mnt/disk
try "mount" mount "$disk" /mnt/disk || finish
fio --name=busy --filename=/mnt/disk/load --size=16M --ioengine=libaio --direct=1 --rw=randrw --bs=4k --iodepth=8 \
    --verify=crc32c --time_based --runtime=15 --output-format=terse >/tmp/busy 2>&1 &
busy=$!
sleep 2
try "remove the first controller" remove nvme0
try "one controller is left" eventually live_controllers 1
try "the disk remains by the other path" exists
try "files are intact with one path" files_intact
try "rescan the PCI bus" rescan
try "two controllers again" eventually live_controllers 2
try "remove the second controller" remove nvme1
try "one controller is left again" eventually live_controllers 1
try "reset the only controller" nvme reset "/dev/$(basename "$(ls -d /sys/class/nvme/nvme*)")"
wait $busy
equal "the verified load succeeds" 0 $? || tail -n 5 /tmp/busy
try "files are intact at the end" files_intact
rm -f /mnt/disk/load
umount /mnt/disk
finish
