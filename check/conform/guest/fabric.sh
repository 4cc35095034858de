# The kernel's initiator for Fibre Channel over Ethernet in its usual mode, behind a switch: a small one in the test
# program, which restarts and ends logins when it is told to.
. /test/lib.sh
. /test/shared.sh
. /test/settings # LARGER (name of the target port)
. /test/fcoe_port.sh
# connect MTU: makes the port of the guest on the link.
connect() {
    ip link set "$lan" up mtu "$1"
    echo "$lan" >/sys/module/libfcoe/parameters/create
}
disconnect() { echo "$lan" >/sys/module/libfcoe/parameters/destroy; }

connect 1500
try "the port of the guest is online" eventually online
says "it is a port of a fabric" "NPort" cat /sys/class/fc_host/host*/port_type
says "the switch has granted its identifier" "0x0a01" cat /sys/class/fc_host/host*/port_id
found "$LARGER"
says "INQUIRY" "LUNAR" sg_inq "$disk"
equal "LUNs of another group are not shown" "" "$(unit "$LARGER" 5)"
load "fio, 4 KiB, 8 deep, frames of 1500 bytes" --rw=randwrite --bs=4k --iodepth=8 --size=1M
load "fio, 256 KiB, 4 deep" --rw=randwrite --bs=256k --iodepth=4 --size=4M
no_errors "no I/O error"

load_start "$disk"
try "LOGICAL UNIT RESET under load" sg_reset -d "$(sg_of "$disk")"
load_end "verified writes over a reset: no error"
clear_attentions "$disk"
dmesg -C

load_start "$disk"
echo "@switch clear"
load_end "verified writes over Clear Virtual Links: no error"
load_start "$disk"
echo "@switch restart"
load_end "verified writes over a restart of the switch: no error"
no_errors "no I/O error of both"
try "the port is back" eventually rport "$LARGER"
dmesg -C

load_start "$disk"
restart_in 2
load_end "verified writes over a kill -9 of the target: no error"
no_errors "no I/O error after the kill"
try "the port is back after the kill" eventually rport "$LARGER"

disconnect
nap 1
connect 2500
found "$LARGER"
load "fio, 256 KiB, 4 deep, jumbo frames" --rw=randwrite --bs=256k --iodepth=4 --size=4M
no_errors "no I/O error with jumbo frames"
disconnect
finish
