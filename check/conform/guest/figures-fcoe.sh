# A disk in memory over Fibre Channel over Ethernet, without a switch: by Lunar and by the kernel's target (LIO, tcm_fc).
# Each has a pair of virtual interfaces, with the kernel's initiator at the other end.
. /test/lib.sh
. /test/figures.sh
. /test/settings # DRIVER

LUNAR_NAME=50:00:00:00:00:12:34:01
LIO_NAME=20:00:52:54:00:12:34:06

modules_of "$HERE/modules"
# pair INITIATOR-MAC TARGET-MAC NAME
pair() {
    ip link add "${3}0" address "$1" type veth peer name "${3}1" address "$2"
    ip link set "${3}0" up mtu 2500
    ip link set "${3}1" up mtu 2500
}
pair 52:54:00:12:34:02 52:54:00:12:34:05 lunar
pair 52:54:00:12:34:03 52:54:00:12:34:06 lio
. /test/fcoe_port.sh
serve "[volume.memory]
kind = \"ram\"
size = \"64M\"
[portal-group.p]
tag = 1
[target.main]
iqn = \"iqn.2026-01.io.lunar.conform:figures\"
portal-groups = [\"p\"]
[group.all]
targets = [\"main\"]
initiators = [\"*\"]
luns = { 0 = \"memory\" }
[fcoe.lan]
link = \"lunar1\"
target = \"main\"
portal-group = \"p\"
mtu = 2500
wwpn = \"$LUNAR_NAME\""
try "LIO has a disk" lio_store rd_mcp rd_pages=16384
try "LIO serves" lio_at fc "$LIO_NAME" tpgt_1 rd_mcp 20:00:52:54:00:12:34:03 || dmesg | tail
[ ! -e "$TARGETS/fc/$LIO_NAME/tpgt_1/enable" ] || echo 1 >"$TARGETS/fc/$LIO_NAME/tpgt_1/enable"
for card in lio1 lio0 lunar0; do
    echo $card >/sys/module/libfcoe/parameters/create_vn2vn
    nap 1
done
for name in "$LUNAR_NAME" "$LIO_NAME"; do
    eventually unit "$name" 0 || {
        grep . /sys/class/fc_host/host*/port_* /sys/class/fc_remote_ports/*/port_*
        dmesg | tail -n 20
        tail "$LOG"
        bad "the port $name has a disk"
        finish
    }
done
compare "Fibre Channel over Ethernet" lunar="$(unit "$LUNAR_NAME" 0)" lio="$(unit "$LIO_NAME" 0)"
finish
