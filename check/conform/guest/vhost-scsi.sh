# The kernel's virtio-scsi driver with a host adapter over vhost-user: all volumes of the group, commands, reservations,
# task management, verified writes, and logical units that grow, come and go while the guest runs.
. /test/lib.sh
. /test/settings # perhaps RESTARTS

# by_lun LUN: the disk of this logical unit of the host adapter; other adapters are the emulator's.
by_lun() {
    local found
    for found in /sys/bus/scsi/devices/*:0:0:"$1"/block/*; do
        [ -b "/dev/${found##*/}" ] && { echo "/dev/${found##*/}"; return 0; }
    done
    return 1
}
has_size() { [ "$(blockdev --getsize64 "$1")" = "$2" ]; }
gone() { ! by_lun "$1"; }

load() {
    local name=$1
    shift
    try "$name" fio --name=load --filename="$disk" --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 \
        --randseed=7 --output-format=terse "$@"
}

eventually by_lun 0 || { dmesg | tail -n 20; bad "the kernel sees the disk"; finish; }
disk=$(by_lun 0)
ok "the kernel sees the disk"
try "the kernel sees the second disk" eventually by_lun 1
equal "size" $((512 << 20)) "$(blockdev --getsize64 "$disk")"
says "sg_inq" "LUNAR" sg_inq "$disk"
says "sg_vpd" "naa|NAA" sg_vpd -p di "$disk"
says "sg_luns" "0001" sg_luns "$disk"
says "sg_readcap" "512" sg_readcap -l "$disk"
says "sg_opcodes" "Read" sg_opcodes "$disk"
try "sg_turs" sg_turs "$disk"
refuse "an invalid CDB" sg_raw -r 512 "$disk" 28 ff ff ff ff ff 00 00 01 00
try "register" sg_persist --out --register --param-sark=0x1234 "$disk"
try "reserve" sg_persist --out --reserve --param-rk=0x1234 --prout-type=1 "$disk"
says "read keys" "0x1234" sg_persist --in --read-keys "$disk"
says "read reservation" "Write Exclusive" sg_persist --in --read-reservation "$disk"
says "read full status" "lunar" sg_persist --in --read-full-status "$disk"
try "release" sg_persist --out --release --param-rk=0x1234 --prout-type=1 "$disk"
try "unregister" sg_persist --out --register --param-rk=0x1234 "$disk"
try "logical unit reset" sg_reset --device "$(sg_of "$disk")"
says "its unit attention" "." sg_requests "$disk"
load "fio, 4 KiB, 32 deep" --rw=randwrite --bs=4k --iodepth=32 --size=4M
load "fio, 1 MiB, 8 deep" --rw=randwrite --bs=1M --iodepth=8 --size=16M
head -c 1M /dev/urandom >/tmp/data
try "write" dd if=/tmp/data of="$disk" bs=64k oflag=direct status=none
equal "read back" "$(sum </tmp/data)" "$(read_sum "$disk" count=1)"
# The test program measures the target.
echo "@idle"
nap 12
try "blkdiscard" blkdiscard -o 0 -l 1M "$disk"
equal "discarded blocks read as zeroes" "$(head -c 1M /dev/zero | sum)" "$(read_sum "$disk" count=1)"
try "COMPARE AND WRITE" sg_compare_and_write --in=/dev/zero --lba=0 --num=1 --xferlen=1024 "$disk"
load_start "$disk"
echo "@grow"
try "an event reports the new size" eventually has_size "$disk" $((640 << 20))
load_end "verified writes over the change of size: no error"
echo "@map"
try "an event reports the new logical unit" eventually by_lun 2
echo "@unmap"
try "an event reports the removed logical unit" eventually gone 2
[ -z "${RESTARTS:-}" ] || restarts_under_load "$RESTARTS"
try "mkfs.ext4" mkfs.ext4 -q -F "$disk" || finish
mkdir -p /mnt/disk
try "mount" mount -o discard "$disk" /mnt/disk || finish
cp /tmp/data /mnt/disk/data
try "fstrim" fstrim /mnt/disk
try "umount" umount /mnt/disk
try "fsck.ext4" fsck.ext4 -f -n "$disk"
finish
