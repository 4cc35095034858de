# Zvols of one pool over iSCSI, by Lunar and by the kernel's target (LIO, iblock); beside the zvol itself.
. /test/lib.sh
. /test/initiator.sh
. /test/figures.sh
. /test/settings # DRIVER

NAME=iqn.2026-01.io.lunar.conform
# Commands of 1 MiB that a measurement of EXTENDED COPY takes.
COPIES=24

# copy_blocks HOW DISK: copies the blocks of a disk within it, by the target (EXTENDED COPY) or by this host.
copy_blocks() {
    case $1 in
    target) sg_xcopy if="$2" of="$2" bs=512 bpt=2048 count=$((COPIES << 11)) seek=$((32 << 11)) ;;
    host) dd if="$2" of="$2" bs=1M count=$COPIES seek=32 iflag=direct oflag=direct ;;
    esac >/tmp/copy.out 2>&1 || { tail -n 5 /tmp/copy.out; return 1; }
}

# copies TABLE TARGET=HOW=DISK...: measures copies within each disk, in turns.
copies() {
    local table=$1 each target how load round begun took
    shift
    : >/tmp/figures
    for round in $(seq $ROUNDS); do
        for each in "$@"; do
            IFS== read -r target how disk <<<"$each"
            load="copy of 1 MiB by the $how, depth 1"
            cp /proc/stat /tmp/before
            begun=$(date +%s%N)
            copy_blocks "$how" "$disk" || continue
            took=$(($(date +%s%N) - begun))
            cp /proc/stat /tmp/after
            echo "$table|$load|$target|$((COPIES * 1000000000 / took))|$((($(busy /tmp/after) - $(busy /tmp/before)) / COPIES))" \
                >>/tmp/figures
        done
    done
    equal "$table: copies of each" $((ROUNDS * $#)) "$(wc -l </tmp/figures)"
    cut -d '|' -f 1-3 /tmp/figures | sort -u >/tmp/kinds
    while read -r each; do
        median "$each"
    done </tmp/kinds
}

for module in spl zfs; do
    insmod "$HERE/$module.ko" || { bad "load $module"; finish; }
done
modules_of "$HERE/modules"
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
# LIO refuses the designators that sg_xcopy takes from its page 83h: "code set of non binary type not supported".
copies "zvols over iSCSI" lunar=target="$lunar" lunar=host="$lunar" lio=host="$disk"
finish
