# Sourced by the guest's scripts that use software RoCE. The target runs in the same guest, in a network namespace of its
# own, as an ordinary program with a UDP socket.
LUNAR=/test/rdma/lunar
LOG=/tmp/lunar.log

# network MTU: sets the MTU of both ends.
network() {
    ip link set rdma0 mtu "$1"
    ip netns exec target ip link set rdma1 mtu "$1"
}
# lose PERCENT: loses so many packets in each direction.
lose() {
    tc qdisc replace dev rdma0 root netem loss "$1%" limit 10000
    ip netns exec target tc qdisc replace dev rdma1 root netem loss "$1%" limit 10000
}
# counter NAME: a counter of the RDMA device.
counter() { cat "/sys/class/infiniband/rxe0/ports/1/hw_counters/$1"; }
serve() {
    ip netns exec target "$LUNAR" daemon --config /tmp/lunar.toml >>"$LOG" 2>&1 &
    target=$!
}
# link_to_target NAME NET: a link to the target with address 2, whose end at the target has address 1.
link_to_target() {
    ip link add "${1}0" type veth peer name "${1}1"
    ip link set "${1}1" netns target
    ip address add "$2.2/24" dev "${1}0"
    ip netns exec target ip address add "$2.1/24" dev "${1}1"
    ip link set "${1}0" up
    ip netns exec target ip link set "${1}1" up
}
# networks: makes the network of the target, and the RDMA device of the initiator.
networks() {
    ip netns add target
    ip link add rdma0 address 52:54:00:12:34:02 type veth peer name rdma1 address 52:54:00:12:34:01
    ip link set rdma1 netns target
    ip address add 192.168.77.2/24 dev rdma0
    ip netns exec target ip address add 192.168.77.1/24 dev rdma1
    network 1500
    ip link set rdma0 up
    ip netns exec target ip link set rdma1 up
    ip netns exec target ip link set lo up
    try "an RDMA device in software" rdma link add rxe0 type rxe netdev rdma0 || finish
    cp /test/rdma/lunar.toml /tmp/lunar.toml
    mkdir -p /tmp/state
}
# load NAME FIO-ARGUMENT...: a case that passes if verified writes to $disk succeed.
load() {
    local name=$1
    shift
    try "$name" fio --name=load --filename="$disk" --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 \
        --randseed=7 --output-format=terse "$@" ||
        { tail "$LOG"; dmesg | tail -n 20; }
}
