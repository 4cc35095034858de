# The kernel's initiator for Fibre Channel over Ethernet without a switch (VN2VN), over a link that loses frames when the
# test program is told to. The same volume is also used over iSCSI, and over a second link.
. /test/lib.sh
. /test/shared.sh
. /test/settings # PORTAL TARGET (iSCSI) LARGER SMALLER SECOND INITIATOR (names of ports), and perhaps LONG
. /test/fcoe_port.sh
. /test/fcoe_paths.sh
# connect MTU [CARD]: makes the port of the guest on a link.
connect() {
    ip link set "${2:-$lan}" up mtu "$1"
    echo "${2:-$lan}" >/sys/module/libfcoe/parameters/create_vn2vn
}
disconnect() { echo "${1:-$lan}" >/sys/module/libfcoe/parameters/destroy; }
write_one() { sg_dd if=/dev/zero of="$disk" bs=512 count=8 oflag=sgio; }
read_one() { dd if="$disk" of=/dev/null bs=4k count=1 iflag=direct status=none; }

# The emulator keeps frames for a card that is down, and delays the ones after them.
ip link set "$lan2" up
connect 1500
try "the port of the guest is online" eventually online
found "$LARGER"
says "INQUIRY" "LUNAR" sg_inq "$disk"
says "the identification has the name of the port" "$(plain "$LARGER")" sg_vpd -p di "$disk"
says "the port of the channel and that of iSCSI belong to one device" "[Rr]elative.*port" sg_vpd -p sp "$disk"
says "REPORT TARGET PORT GROUPS: active/non-optimized" "non.optimized" sg_rtpg -d "$disk"
equal "its size" $((64 << 20)) "$(blockdev --getsize64 "$disk")"
equal "LUNs of another group are not shown" "" "$(unit "$LARGER" 5)"
load "fio, 4 KiB, 8 deep, frames of 1500 bytes" --rw=randwrite --bs=4k --iodepth=8 --size=2M
load "fio, 256 KiB, 4 deep" --rw=randwrite --bs=256k --iodepth=4 --size=16M
load "fio, 512 bytes, 8 deep" --rw=randwrite --bs=512 --iodepth=8 --size=128k
no_errors "no I/O error"

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

load_start "$disk"
try "LOGICAL UNIT RESET under load" sg_reset -d "$(sg_of "$disk")"
load_end "verified writes over a reset: no error"

# The handler of this volume is stopped: a command hangs in its store, until its time is over. The abort waits for that:
# the store must not execute a command that was aborted.
try "the kernel finds the disk of the handler" eventually unit "$LARGER" 2
slow=$(unit "$LARGER" 2)
read_slow() { dd if="$slow" of=/dev/null bs=4k count=1 iflag=direct status=none; }
try "a read of the handler" read_slow
load_start "$disk"
dmesg -C
# Messages of the error handler: an abort that fails is followed by a reset.
echo 128 >/sys/module/libfc/parameters/debug_logging
echo "@stop"
refuse "a command that hangs in the store is aborted" sg_raw -t 3 -r 512 "$slow" 28 00 00 00 10 00 00 00 01 00
echo "@continue"
try "the disk answers again" eventually read_slow
load_end "verified writes to another disk over the abort: no error"
echo 0 >/sys/module/libfc/parameters/debug_logging
equal "no reset after the abort" "" "$(dmesg | grep -iE 'I/O error|reset|offline')"
clear_attentions "$disk"

iscsi_login
head -c 1M /dev/urandom >/tmp/random
try "write over Fibre Channel" dd if=/tmp/random of="$disk" bs=1M oflag=direct status=none
equal "read over iSCSI" "$(sum </tmp/random)" "$(read_sum "$other" count=1)"
try "register over iSCSI" sg_persist --out --register --param-sark=abc "$other"
try "reserve over iSCSI, write exclusive" sg_persist --out --reserve --param-rk=abc --prout-type=1 "$other"
clear_attentions "$disk"
refuse "a write over Fibre Channel is refused" write_one
try "a read over Fibre Channel succeeds" read_one
try "register over Fibre Channel" sg_persist --out --register --param-sark=def "$disk"
says "the registrant has the name of the initiator" "${INITIATOR//:/ ?}" sg_persist -s "$other"
try "clear over iSCSI" sg_persist --out --clear --param-rk=abc "$other"
clear_attentions "$disk"
try "a write over Fibre Channel succeeds again" write_one
iscsi_logout
dmesg -C

echo "@loss 10"
load "fio, 4 KiB, 8 deep, one frame of a hundred is lost" --rw=randwrite --bs=4k --iodepth=8 --size=512k
echo "@loss 1"
load "fio, 64 KiB, 4 deep, one frame of a thousand is lost" --rw=randwrite --bs=64k --iodepth=4 --size=1M
echo "@loss 0"
no_errors "no I/O error with losses"
dmesg -C

load_start "$disk"
restart_in 2
load_end "verified writes over a kill -9 of the target: no error"
no_errors "no I/O error after the kill"
try "the port is back" eventually rport "$LARGER"

disconnect
nap 1
connect 2500
found "$LARGER"
load "fio, 4 KiB, 8 deep, jumbo frames" --rw=randwrite --bs=4k --iodepth=8 --size=1M
load "fio, 256 KiB, 4 deep, jumbo frames" --rw=randwrite --bs=256k --iodepth=4 --size=8M
no_errors "no I/O error with jumbo frames"

load_start "$disk"
ip link set "$lan" down
nap 3
refuse "the port of the guest is offline" online
ip link set "$lan" up
load_end "verified writes over a link that was down for three seconds: no error"
no_errors "no I/O error after the link was down"

# The port with the larger name sends PLOGI: now that is the guest.
echo "@smaller"
found "$SMALLER"
load "fio, 64 KiB, 8 deep, the guest sends PLOGI" --rw=randwrite --bs=64k --iodepth=8 --size=4M
no_errors "no I/O error with a smaller name"
kill_again() {
    load_start "$disk"
    restart_in 2
    load_end "verified writes over another kill -9: no error"
}
whole_only kill_again
whole_only paths_test "$SMALLER"
disconnect
finish
