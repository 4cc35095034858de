# A disk in memory over software RoCE of the kernel: by Lunar, an ordinary program at the other end of a pair of virtual
# interfaces; by Lunar on the RDMA device of the kernel (verbs); and by the kernel's targets (LIO, nvmet). The kernel reaches
# the last two inside of its software RoCE, without packets on an interface.
. /test/lib.sh
. /test/initiator.sh
. /test/nvme_host.sh
. /test/figures.sh
. /test/settings # DRIVER

NAME=iqn.2026-01.io.lunar.conform
NQN=nqn.2026-01.io.lunar.conform
OWN=192.168.77.2
# A second address of the device: each target has the usual ports.
VERBS=192.168.77.3
GUID=505400fffe123401
# Not the GUID of the device, which is that of LIO.
VERBS_GUID=505400fffe123403

modules_of "$HERE/modules"
ip netns add target
ip link add rdma0 address 52:54:00:12:34:02 type veth peer name rdma1 address 52:54:00:12:34:01
ip link set rdma1 netns target
ip address add $OWN/24 dev rdma0
ip address add $VERBS/24 dev rdma0
ip link set rdma0 up mtu 4200
ip netns exec target ip address add 192.168.77.1/24 dev rdma1
ip netns exec target ip link set rdma1 up mtu 4200
ip netns exec target ip link set lo up
try "an RDMA device in software" rdma link add rxe0 type rxe netdev rdma0 || finish
# sections NAME ADDRESS GUID LINK: the configuration of a target.
sections() {
    cat <<END
[volume.memory]
kind = "ram"
size = "64M"
[portal-group.p]
tag = 1
[target.main]
iqn = "$NAME:$1"
nqn = "$NQN:$1"
portal-groups = ["p"]
[group.all]
targets = ["main"]
initiators = ["*"]
luns = { 0 = "memory" }
[srp.lan]
address = "$2"
target = "main"
portal-group = "p"
guid = "$3"
$4
[iser.lan]
address = "$2"
portal-group = "p"
$4
[nvme-rdma.lan]
address = "$2"
portal-group = "p"
$4
END
}
serve "$(sections verbs $VERBS $VERBS_GUID 'link = "verbs"')" verbs
printf '#!/bin/sh\nexec ip netns exec target %s "$@"\n' "$LUNAR" >/tmp/lunar
chmod +x /tmp/lunar
LUNAR=/tmp/lunar
serve "$(sections lunar 192.168.77.1 $GUID "")"
try "LIO has a disk" lio_store rd_mcp rd_pages=16384
daemon 60

# SRP.
mkdir -p "$TARGETS/srpt"
# It listens on all addresses.
echo 5556 >"$TARGETS/srpt/discovery_auth/rdma_cm_port"
own=$(cat /sys/class/infiniband/rxe0/node_guid)
try "LIO serves over SRP" lio_at srpt "$own" "$own" rd_mcp $OWN
echo 1 >"$TARGETS/srpt/$own/$own/enable"
service=$(cat /sys/module/ib_srpt/parameters/srpt_service_guid)
# srp_disk GUID ADDRESS [PORT]: logs in; the disk is in $disk.
srp_disk() {
    local before
    before=$(ls /dev/sd* 2>/dev/null)
    try "login over SRP to $2" eventually srp_login "$1" "$2" "${3:-5555}" || { dmesg | tail -n 20; tail "$LOG"; finish; }
    new_disk() { disk=$(comm -13 <(echo "$before") <(ls /dev/sd*) | grep -E '^/dev/sd[a-z]+$' | head -n 1) && [ -b "$disk" ]; }
    eventually new_disk || { dmesg | tail -n 20; bad "a disk over SRP"; finish; }
    new_disk
}
srp_login() { echo "id_ext=$1,ioc_guid=$1,dest=$2:$3,ch_count=1" >/sys/class/infiniband_srp/srp-rxe0-1/add_target; }
srp_disk $GUID 192.168.77.1
lunar=$disk
srp_disk $VERBS_GUID $VERBS
verbs=$disk
srp_disk "${service#0x}" $OWN 5556
compare "SRP" lunar="$lunar" verbs="$verbs" lio="$disk"
for port in /sys/class/srp_remote_ports/port-*; do echo 1 >"$port/delete"; done

# iSER.
try "LIO serves over iSER" lio_iscsi "$NAME:lio" $OWN:3260 rd_mcp iser
iscsiadm -m iface -I rdma -o new >/dev/null
iscsiadm -m iface -I rdma -o update -n iface.transport_name -v iser >/dev/null
log_in "$NAME:lunar" 192.168.77.1:3260 rdma
lunar=$disk
log_in "$NAME:verbs" $VERBS:3260 rdma
verbs=$disk
log_in "$NAME:lio" $OWN:3260 rdma
compare "iSER" lunar="$lunar" verbs="$verbs" lio="$disk"
iscsiadm -m node --logoutall=all >/dev/null 2>&1

# NVMe/RDMA.
nvmet=/sys/kernel/config/nvmet
mkdir -p /tmp/files "$nvmet/subsystems/$NQN:nvmet/namespaces/1" "$nvmet/ports/1"
echo 1 >"$nvmet/subsystems/$NQN:nvmet/attr_allow_any_host"
echo /dev/ram0 >"$nvmet/subsystems/$NQN:nvmet/namespaces/1/device_path"
echo 1 >"$nvmet/subsystems/$NQN:nvmet/namespaces/1/enable"
echo rdma >"$nvmet/ports/1/addr_trtype"
echo ipv4 >"$nvmet/ports/1/addr_adrfam"
echo $OWN >"$nvmet/ports/1/addr_traddr"
echo 4420 >"$nvmet/ports/1/addr_trsvcid"
try "nvmet serves" ln -s "$nvmet/subsystems/$NQN:nvmet" "$nvmet/ports/1/subsystems/" || dmesg | tail
identity
found() { [ -n "$(namespaces "$1")" ]; }
for each in "192.168.77.1 $NQN:lunar" "$VERBS $NQN:verbs" "$OWN $NQN:nvmet"; do
    read -r address name <<<"$each"
    try "connect to $name" eventually nvme connect -t rdma -a "$address" -s 4420 -n "$name" -i 1
    eventually found "$name" || { dmesg | tail -n 20; bad "a namespace of $name"; finish; }
done
compare "NVMe/RDMA" lunar="$(namespaces "$NQN:lunar")" verbs="$(namespaces "$NQN:verbs")" nvmet="$(namespaces "$NQN:nvmet")"
finish
