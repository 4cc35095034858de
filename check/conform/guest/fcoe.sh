# The kernel's initiator for Fibre Channel over Ethernet without a switch (VN2VN), over a link that loses frames when the
# test program is told to. The same volume is also used over iSCSI.
. /test/lib.sh
. /test/shared.sh
. /test/settings # PORTAL TARGET (iSCSI) LARGER SMALLER INITIATOR (names of ports)
lan=
for card in /sys/class/net/*; do
    [ "$(cat "$card/address")" = 52:54:00:12:34:02 ] && lan=${card##*/}
done

# plain NAME: a name of a port as the kernel writes it.
plain() { echo "0x${1//:/}"; }
online() { grep -q Online /sys/class/fc_host/host*/port_state; }
# rport NAME: the remote port of this name, online.
rport() {
    local port
    for port in /sys/class/fc_remote_ports/rport-*; do
        [ "$(cat "$port/port_name" 2>/dev/null)" = "$(plain "$1")" ] || continue
        grep -q Online "$port/port_state" && { echo "${port##*/}"; return 0; }
    done
    return 1
}
# unit NAME LUN: the disk of this LUN at the port of this name.
unit() {
    local port found
    port=$(rport "$1") || return 1
    for found in /sys/class/fc_host/host*/device/"$port"/target*/*:*:*:"$2"/block/*; do
        [ -b "/dev/${found##*/}" ] && { echo "/dev/${found##*/}"; return 0; }
    done
    return 1
}
# connect MTU: makes the port of the guest on the link.
connect() {
    ip link set "$lan" up mtu "$1"
    echo "$lan" >/sys/module/libfcoe/parameters/create_vn2vn
}
disconnect() { echo "$lan" >/sys/module/libfcoe/parameters/destroy; }
# found NAME: waits for both disks of the port of this name, which are in $disk and $second.
found() {
    try "the port $1 is online" eventually rport "$1" || {
        grep . /sys/class/fc_host/host*/port_* /sys/class/fc_remote_ports/*/port_*
        dmesg | tail -n 20
        finish
    }
    try "the kernel finds the disk" eventually unit "$1" 0 || { dmesg | tail -n 20; finish; }
    try "the kernel finds the second disk" eventually unit "$1" 1
    disk=$(unit "$1" 0)
    second=$(unit "$1" 1)
}
load() {
    local name=$1
    shift
    try "$name" fio --name=load --filename="$disk" --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 \
        --randseed=7 --output-format=terse "$@"
}
write_one() { sg_dd if=/dev/zero of="$disk" bs=512 count=8 oflag=sgio; }
read_one() { dd if="$disk" of=/dev/null bs=4k count=1 iflag=direct status=none; }
# The first command after a condition reports it.
clear_attentions() { sg_turs -n 5 "$1" >/dev/null 2>&1; return 0; }
no_errors() { equal "$1" "" "$(dmesg | grep -i 'I/O error')"; }

[ -n "$lan" ] || { bad "the network card of the link"; finish; }
[ -d /sys/module/fcoe ] || modprobe fcoe 2>/dev/null
[ -d /sys/module/fcoe ] || { echo "@skip fcoe: the kernel has no FCoE"; finish; }
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
load "fio, 64 KiB, 4 deep, one frame of a thousand is lost" --rw=randwrite --bs=64k --iodepth=4 --size=2M
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

# The port with the larger name sends PLOGI: now that is the guest.
echo "@smaller"
found "$SMALLER"
load "fio, 64 KiB, 8 deep, the guest sends PLOGI" --rw=randwrite --bs=64k --iodepth=8 --size=4M
no_errors "no I/O error with a smaller name"
load_start "$disk"
restart_in 2
load_end "verified writes over another kill -9: no error"
disconnect
finish
