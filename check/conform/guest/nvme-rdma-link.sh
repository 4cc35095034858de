# The kernel's NVMe host over software RoCE, to a target with addresses of its own on the links of the guest, which no
# machine has: IPv4 with MTU 1500 on one, IPv6 with MTU 4200 on the other. The target is an ordinary program on the host.
. /test/lib.sh
. /test/rdma.sh
. /test/settings # NQN TARGET4 OWN4 TARGET6 OWN6

# card MAC: the network card with this address.
card() {
    local card
    for card in /sys/class/net/*; do
        [ "$(cat "$card/address")" = "$1" ] && echo "${card##*/}"
    done
}
lan=$(card 52:54:00:12:34:02)
lan2=$(card 52:54:00:12:34:03)
modules_of /test/rdma/modules
mkdir -p /etc/nvme
id=$(cat /proc/sys/kernel/random/uuid)
echo "nqn.2014-08.org.nvmexpress:uuid:$id" >/etc/nvme/hostnqn
echo "$id" >/etc/nvme/hostid

exists() {
    disk=$(echo /dev/nvme?n1)
    test -b "$disk"
}
absent() { ! test -b "$disk"; }
state_is() { [ "$(cat /sys/class/nvme/nvme*/state)" = "$1" ]; }
# connect NAME ADDRESS OPTIONS...
connect() {
    local name=$1 address=$2
    shift 2
    try "$name" eventually nvme connect -t rdma -a "$address" -s 4420 -n "$NQN" -i 1 --keep-alive-tmo=30 "$@" ||
        { dmesg | tail -n 20; finish; }
    try "the kernel finds the namespace" eventually exists || { dmesg | tail -n 20; finish; }
    # Cases run in a shell of their own.
    exists
}
disconnect() {
    try "disconnect" nvme disconnect -n "$NQN"
    try "the namespace is gone" eventually absent
}
no_errors() { equal "$1" "" "$(dmesg | grep -iE 'I/O error|timeout|bogus')"; dmesg -C; }

ip address add "$OWN4/24" dev "$lan"
ip link set "$lan" up mtu 1500
ip -6 address add "$OWN6/64" dev "$lan2" nodad
ip link set "$lan2" up mtu 4200
try "ping" eventually ping -c 1 -W 2 "$TARGET4" || finish
try "ping with 1400 bytes" ping -c 1 -W 5 -s 1400 "$TARGET4"
try "ping over IPv6" eventually ping -6 -c 1 -W 2 "$TARGET6"
says "the MAC address of the target is known" "lladdr 02:" ip neigh show "$TARGET4"
ip -6 address add "$TARGET6/64" dev "$lan2"
failed_detection() { ip -6 address show dev "$lan2" | grep -q "$TARGET6.*dadfailed"; }
try "the kernel does not take the IPv6 address of the target" eventually failed_detection
ip -6 address del "$TARGET6/64" dev "$lan2"

try "an RDMA device on the first link" rdma link add rxe0 type rxe netdev "$lan" || finish
try "an RDMA device on the second link" rdma link add rxe1 type rxe netdev "$lan2" || finish
dmesg -C
connect "connect over IPv4" "$TARGET4"
load "fio, 4 KiB, 8 deep" --rw=randwrite --bs=4k --iodepth=8 --size=512k
load "fio, 256 KiB, 4 deep" --rw=write --bs=256k --iodepth=4 --size=2M
no_errors "no I/O error"
echo "@loss 10"
load "fio, 16 KiB, 8 deep, one frame of a hundred is lost" --rw=randwrite --bs=16k --iodepth=8 --size=512k
echo "@loss 0"
no_errors "no I/O error with losses"
disconnect

connect "connect over IPv6" "$TARGET6" --reconnect-delay=2
load "fio, 64 KiB, 8 deep, MTU 4200" --rw=randwrite --bs=64k --iodepth=8 --size=2M
no_errors "no I/O error over IPv6"
patient "$disk"
load_start "$disk"
restart_in 1
load_end "verified writes over kill -9 of the target: no error"
try "the host is connected again" eventually state_is live
disconnect
finish
