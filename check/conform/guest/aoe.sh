# The kernel's initiator for ATA over Ethernet, over a link that loses, duplicates and delays frames. The same volume is
# also used over iSCSI.
. /test/lib.sh
. /test/shared.sh
. /test/settings # PORTAL TARGET (iSCSI)
disk=/dev/etherd/e7.2
second=/dev/etherd/e7.3
lan=
for card in /sys/class/net/*; do
    [ "$(cat "$card/address")" = 52:54:00:12:34:02 ] && lan=${card##*/}
done

there() { test -b "$1"; }
# The initiator makes its device nodes from uevents; without udev they are made here.
nodes() {
    local name
    mkdir -p /dev/etherd
    for name in /sys/block/etherd\!*; do
        [ -e "$name/dev" ] || continue
        IFS=: read -r major minor <"$name/dev"
        [ -b "/dev/etherd/${name##*!}" ] || mknod "/dev/etherd/${name##*!}" b "$major" "$minor"
    done
}
# tell NAME: writes to a control node of the driver, all of which have the major number 152.
tell() {
    local minor
    case $1 in discover) minor=3 ;; interfaces) minor=4 ;; revalidate) minor=5 ;; flush) minor=6 ;; esac
    mkdir -p /dev/etherd
    [ -c "/dev/etherd/$1" ] || mknod "/dev/etherd/$1" c 152 $minor
    printf '%s' "$2" >"/dev/etherd/$1"
}
found() { tell discover 1; nodes; there "$1"; }
is_up() { grep -q "^up" "/sys/block/etherd!${1##*/}/state"; }
sectors() { cat "/sys/block/etherd!${disk##*/}/size"; }
revalidated() { tell revalidate e7.2; nap 1; [ "$(sectors)" = "$1" ]; }
load() {
    local name=$1
    shift
    try "$name" fio --name=load --filename="$disk" --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 \
        --randseed=7 --output-format=terse "$@"
}
write_one() { dd if=/dev/zero of="$disk" bs=4k count=1 oflag=direct status=none; }
read_one() { dd if="$disk" of=/dev/null bs=4k count=1 iflag=direct status=none; }

[ -n "$lan" ] || { bad "the network card of the link"; finish; }
ip link set "$lan" up mtu 1500
grep -q ' aoe$\|^aoe ' /proc/modules /proc/devices 2>/dev/null || modprobe aoe 2>/dev/null
tell interfaces "$lan"
try "the kernel finds the disk" eventually found "$disk" || { dmesg | tail -n 20; finish; }
try "the kernel finds the second disk" eventually found "$second"
try "the disk is up" eventually is_up "$disk"
equal "its size" $((64 << 11)) "$(sectors)"
refuse "a slot of another station is not found" there /dev/etherd/e7.7
load "fio, 4 KiB, 8 deep, frames of 1500 bytes with losses" --rw=randwrite --bs=4k --iodepth=8 --size=2M
load "fio, 512 bytes, 8 deep" --rw=randwrite --bs=512 --iodepth=8 --size=256k
ip link set "$lan" mtu 9000
tell revalidate e7.2
load "fio, 64 KiB, 8 deep, jumbo frames with losses" --rw=randwrite --bs=64k --iodepth=8 --size=4M
equal "no I/O error" "" "$(dmesg | grep -i 'I/O error')"

try "mkfs.ext4" mkfs.ext4 -q -F "$second"
mkdir -p /mnt/disk
try "mount" mount "$second" /mnt/disk
head -c 4M /dev/urandom >/mnt/disk/file
kept=$(sum </mnt/disk/file)
try "umount" umount /mnt/disk
try "fsck.ext4" fsck.ext4 -f -n "$second"
try "mount again" mount "$second" /mnt/disk
equal "the file has its contents" "$kept" "$(sum </mnt/disk/file)"
umount /mnt/disk

iscsi_login
head -c 1M /dev/urandom >/tmp/random
try "write over AoE" dd if=/tmp/random of="$disk" bs=1M oflag=direct status=none
equal "read over iSCSI" "$(sum </tmp/random)" "$(read_sum "$other" count=1)"
try "register over iSCSI" sg_persist --out --register --param-sark=abc "$other"
try "reserve over iSCSI, write exclusive" sg_persist --out --reserve --param-rk=abc --prout-type=1 "$other"
# The driver repeats a request without an answer for three minutes (aoe_deadsecs).
begin=$SECONDS
refuse "a write over AoE is refused" write_one
[ $((SECONDS - begin)) -lt 90 ] && ok "it is refused at once" || bad "it is refused at once"
try "a read over AoE succeeds" read_one
try "clear over iSCSI" sg_persist --out --clear --param-rk=abc "$other"
try "a write over AoE succeeds again" write_one
try "the disk is still up" is_up "$disk"
iscsi_logout
dmesg -C

echo "@grow"
try "the kernel sees the new size" eventually revalidated $((96 << 11))
try "write the last MiB" dd if=/tmp/random of="$disk" bs=1M seek=95 count=1 oflag=direct status=none
equal "read the last MiB" "$(sum </tmp/random)" "$(read_sum "$disk" skip=95 count=1)"

load_start "$disk"
restart_in 2
load_end "verified writes over a kill -9 of the target: no error"
equal "no I/O error after the kill" "" "$(dmesg | grep -i 'I/O error')"
finish
