# The kernel's initiators for SRP, iSER and NVMe/RDMA, and a target on the RDMA device of the same machine: a device in
# software, which connects both without packets on an interface.
. /test/lib.sh
. /test/rdma.sh
. /test/initiator.sh
. /test/settings # TARGET NQN GUID ADDRESS DRIVER

modules_of /test/rdma/modules
mkdir -p /etc/nvme /tmp/state
id=$(cat /proc/sys/kernel/random/uuid)
echo "nqn.2014-08.org.nvmexpress:uuid:$id" >/etc/nvme/hostnqn
echo "$id" >/etc/nvme/hostid
cp /test/rdma/lunar.toml /tmp/lunar.toml
chmod 600 /tmp/lunar.toml
chmod 1777 /tmp
chown 65534:65534 /tmp/state /tmp/lunar.toml

quit() {
    tail -n 30 "$LOG"
    dmesg | tail -n 20
    finish
}
no_errors() { equal "$1" "" "$(dmesg | grep -iE 'I/O error|conn error|bogus')"; dmesg -C; }
# as_user KIB COMMAND...: runs a command without privileges, which may lock so much memory.
as_user() {
    ulimit -l "$1" && shift && exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
}
serve_here() {
    as_user unlimited "$LUNAR" daemon --config /tmp/lunar.toml >>"$LOG" 2>&1 &
    target=$!
}

# SRP.
srp_disk() {
    local found
    for found in /sys/class/srp_host/host*/device/target*/*:*:*:0/block/*; do
        [ -b "/dev/${found##*/}" ] && { echo "/dev/${found##*/}"; return 0; }
    done
    return 1
}
srp_login() {
    echo "id_ext=$GUID,ioc_guid=$GUID,dest=$ADDRESS:5555,ch_count=$1" >/sys/class/infiniband_srp/srp-rxe0-1/add_target
}
srp_on() {
    try "SRP: log in with $1 channels" eventually srp_login "$1" || quit
    try "SRP: the kernel finds the disk" eventually srp_disk || quit
    disk=$(srp_disk)
}
srp_gone() { ! srp_disk >/dev/null; }
srp_off() {
    for port in /sys/class/srp_remote_ports/port-*; do echo 1 >"$port/delete"; done
    try "SRP: log out" eventually srp_gone
}

# iSER.
node() { iscsiadm -m node -T "$TARGET" -p "$ADDRESS:3260" "$@"; }
discover() { iscsiadm -m discovery -t sendtargets -p "$ADDRESS:3260" -I iser; }
iser_on() {
    try "iSER: discovery" eventually discover || quit
    try "iSER: log in" node -I iser --login || quit
    try "iSER: the kernel finds the disk" eventually disk_of 0 || quit
    disk=$(disk_of 0)
}
iser_gone() { ! disk_of 0 >/dev/null; }
iser_off() {
    try "iSER: log out" node --logout
    try "iSER: the disk is gone" eventually iser_gone
    # ib_iser reports an error of the connection if the target, which ends it after the logout, is faster.
    dmesg -C
}

# NVMe/RDMA.
namespace() { grep -lx 1 /sys/block/nvme*/nsid 2>/dev/null | sed -n 's|^/sys/block/\(nvme[0-9]*n[0-9]*\)/nsid$|/dev/\1|p' | head -n 1; }
has_namespace() { [ -b "$(namespace)" ]; }
nvme_connect() { nvme connect -t rdma -a "$ADDRESS" -s 4420 -n "$NQN" --keep-alive-tmo=30 --reconnect-delay=2 "$@"; }
nvme_on() {
    try "NVMe/RDMA: connect $*" eventually nvme_connect "$@" || quit
    try "NVMe/RDMA: the kernel finds the namespace" eventually has_namespace || quit
    disk=$(namespace)
}
nvme_gone() { ! has_namespace; }
nvme_off() {
    try "NVMe/RDMA: disconnect" nvme disconnect -n "$NQN"
    try "NVMe/RDMA: the namespace is gone" eventually nvme_gone
}

# loads NAME: verified writes to $disk.
loads() {
    load "$1: fio, 4 KiB, 8 deep" --rw=randwrite --bs=4k --iodepth=8 --size=512k
    load "$1: fio, 64 KiB, 8 deep" --rw=randwrite --bs=64k --iodepth=8 --size=2M
    load "$1: fio, 1 MiB, 4 deep" --rw=write --bs=1M --iodepth=4 --size=4M
    load "$1: fio, 512 bytes, 8 deep" --rw=randwrite --bs=512 --iodepth=8 --size=32k
    no_errors "$1: no I/O error"
}

# kill_under_load NAME PATTERN: the target is killed under verified writes to $disk, and logins match the pattern.
kill_under_load() {
    local logins
    patient "$disk"
    load_start "$disk"
    kill -9 "$target"
    sleep 1
    logins=$(grep -c "$2" "$LOG")
    logged_in() { [ "$(grep -c "$2" "$LOG")" -gt "$logins" ]; }
    serve_here
    try "$1: the initiator logs in again, without waiting for the time-out of a command" eventually logged_in "$1" "$2"
    load_end "$1: verified writes over kill -9 of the target: no error"
}

refuses "a machine without an RDMA device is refused" "no RDMA device: .rdma link" --nvme-rdma "$ADDRESS@verbs" ram:4M
ip link add rdma0 address 52:54:00:12:34:02 type veth peer name rdma1
ip address add "$ADDRESS/24" dev rdma0
ip link set rdma0 up mtu 4200
ip link set rdma1 up mtu 4200
ip link set lo up
try "an RDMA device in software" rdma link add rxe0 type rxe netdev rdma0 || finish
refuses "an address that no device has is refused" "no RDMA device has the address 127.0.0.1" --srp 127.0.0.1@verbs ram:4M
refuses "another device is refused" "device rxe0, not of mlx5_0" --nvme-rdma "$ADDRESS@verbs:mlx5_0" ram:4M
locked() { (as_user 1024 env HOME=/tmp timeout 60 "$LUNAR" serve --driver "$DRIVER" --listen 127.0.0.1:3261 "$@"); }
fails "memory that may not be locked is refused" "LimitMEMLOCK" locked --nvme-rdma "$ADDRESS@verbs" ram:4M

daemon 120
serve_here
srp_on 1
says "SRP: INQUIRY" "LUNAR" sg_inq "$disk"
equal "SRP: its size" $((64 << 20)) "$(blockdev --getsize64 "$disk")"
loads "SRP"
refuses "a port that is in use is refused" "port 5555 of the RDMA connection manager" --srp "$ADDRESS@verbs" ram:4M
srp_off

iser_on
says "iSER: the transport" "iser: \[" iscsiadm -m session
loads "iSER"
iser_off

nvme_on -i 1
loads "NVMe/RDMA"
says "NVMe/RDMA: discover" "subnqn: *$NQN" nvme discover -t rdma -a "$ADDRESS" -s 4420
refuse "NVMe/RDMA: another subsystem is refused" nvme connect -t rdma -a "$ADDRESS" -s 4420 -n "$NQN-other"
try "NVMe/RDMA: reset of the controller" nvme reset /dev/nvme0
try "NVMe/RDMA: the namespace is there again" eventually has_namespace
load "NVMe/RDMA: fio, 16 KiB, 8 deep, after a reset" --rw=randwrite --bs=16k --iodepth=8 --size=512k
nvme_off
dmesg -C

# At rest, the daemon sleeps: it has hardly any of the 500 ticks of five seconds. On a busy machine that emulates the guest
# they can be 60; nearly all if it polled.
ticks() {
    local stat
    read -ra stat <"/proc/$target/stat"
    echo $((stat[13] + stat[14]))
}
nvme_on -i 1
# The host looks at the namespace first.
sleep 3
before=$(ticks)
sleep 5
try "a connection at rest takes no processor time" [ $(($(ticks) - before)) -le 200 ]

kill_under_load "NVMe/RDMA" "): connected"
nvme_off
whole() {
    srp_on 4
    load "SRP: fio, 4 KiB, 8 deep, two jobs over four channels" --rw=randwrite --bs=4k --iodepth=8 --size=256k \
        --numjobs=2 --offset_increment=8M
    kill_under_load "SRP" "has logged in"
    srp_off
    iser_on
    kill_under_load "iSER" "login accepted"
    iser_off
    nvme_on -i 4
    load "NVMe/RDMA: fio, 4 KiB, 8 deep, two jobs over four queues" --rw=randwrite --bs=4k --iodepth=8 --size=256k \
        --numjobs=2 --offset_increment=8M
    nvme_off
}
whole_only whole
kill "$target"
wait "$target"
equal "the target ends well" 0 $?
finish
