# Zvols of one pool over iSCSI, by Lunar and by the kernel's target (LIO, iblock); beside the zvol itself.
. /test/lib.sh
. /test/initiator.sh
. /test/figures.sh
. /test/settings # DRIVER

NAME=iqn.2026-01.io.lunar.conform

for module in spl zfs; do
    insmod "$HERE/$module.ko" || { bad "load $module"; finish; }
done
load_modules
mkdir -p /run/udev /tmp/files
/usr/lib/systemd/systemd-udevd --daemon
mount -t tmpfs -o size=900M none /tmp/files
truncate -s 800M /tmp/files/tank.img
tank=$(losetup --find --show /tmp/files/tank.img)
try "make a pool" zpool create -f -O compression=off tank "$tank" || finish
for name in lunar lio disk; do
    zfs create -V 64M "tank/$name"
    eventually [ -b "/dev/zvol/tank/$name" ]
done
daemon 60
serve "[volume.disk]
kind = \"zvol\"
dataset = \"tank/lunar\"
$(one_target "$NAME:lunar" 127.0.0.1:3260 '0 = "disk"')"
zvol=$(readlink -f /dev/zvol/tank/lio)
try "LIO has the zvol" lio_store iblock "udev_path=$zvol" "$zvol" || dmesg | tail
try "LIO serves" lio_iscsi "$NAME:lio" 127.0.0.1:3270 iblock || dmesg | tail
log_in "$NAME:lunar" 127.0.0.1:3260
lunar=$disk
log_in "$NAME:lio" 127.0.0.1:3270
compare "zvols over iSCSI" lunar="$lunar" lio="$disk" disk="$(readlink -f /dev/zvol/tank/disk)"
finish
