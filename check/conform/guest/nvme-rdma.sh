# The kernel's NVMe host over software RoCE, with nvme-cli. The target runs in the same guest.
. /test/lib.sh
. /test/rdma.sh
. /test/settings # NQN PORT SECRET_NQN HOSTNQN HOST_KEY CONTROLLER_KEY OTHER_KEY

modules_of /test/rdma/modules nvme_rdma
mkdir -p /etc/nvme
id=$(cat /proc/sys/kernel/random/uuid)
echo "nqn.2014-08.org.nvmexpress:uuid:$id" >/etc/nvme/hostnqn
echo "$id" >/etc/nvme/hostid

# device NSID: the device of a namespace. The kernel numbers devices in the order in which it has found the namespaces.
device() {
    local at
    for at in /sys/block/nvme0n*; do
        [ "$(cat "$at/nsid" 2>/dev/null)" = "$1" ] && echo "/dev/${at##*/}"
    done
}
exists() { test -b "$(device 1)" && test -b "$(device 2)"; }
# find_disks NAME: waits for both namespaces, which are then in $disk and $second. Cases run in a shell of their own.
find_disks() {
    try "$1" eventually exists || { tail "$LOG"; dmesg | tail -n 20; finish; }
    disk=$(device 1)
    second=$(device 2)
}
absent() { ! test -b "$disk"; }
# The address of the target: one of its machine, or one of its own on its interface.
address=192.168.77.1
nvme_connect() { nvme connect -t rdma -a "$address" -s "$PORT" -n "$NQN" -i 1 --keep-alive-tmo=30 "$@"; }
# connect NAME OPTIONS...
connect() {
    local name=$1
    shift
    try "$name" eventually nvme_connect "$@" || { tail "$LOG"; dmesg | tail -n 20; finish; }
    find_disks "the kernel finds the namespaces"
}
disconnect() {
    try "disconnect" nvme disconnect -n "$NQN"
    try "the namespaces are gone" eventually absent
}
no_errors() { equal "$1" "" "$(dmesg | grep -iE 'I/O error|timeout|bogus')"; dmesg -C; }

# DH-HMAC-CHAP of both sides.
nvme_authenticated() {
    nvme connect -t rdma -a 192.168.77.1 -s "$PORT" -n "$SECRET_NQN" -i 1 --hostnqn="$HOSTNQN" \
        --hostid="${HOSTNQN##*uuid:}" "$@"
}
is_there() { test -b "$(device 1)"; }
authentication_test() {
    refuse "a host without a key is refused" nvme_authenticated
    refuse "a host with a wrong key is refused" nvme_authenticated --dhchap-secret="$OTHER_KEY"
    refuse "a subsystem with a wrong key is refused" nvme_authenticated --dhchap-secret="$HOST_KEY" \
        --dhchap-ctrl-secret="$OTHER_KEY"
    says "the refusal names the subsystem" "\"target\": *\"$SECRET_NQN\"" "$LUNAR" explain refusal --json --socket /tmp/lunar.sock
    try "a host and a subsystem that authenticate each other" nvme_authenticated --dhchap-secret="$HOST_KEY" \
        --dhchap-ctrl-secret="$CONTROLLER_KEY" || dmesg | tail -n 15
    try "the kernel finds the namespace" eventually is_there
    disk=$(device 1)
    load "fio after the authentication" --rw=randwrite --bs=16k --iodepth=4 --size=256k
    nvme disconnect -n "$SECRET_NQN" >/dev/null
    try "the namespace is gone" eventually absent
    dmesg -C
}

# storm_test: many controllers connect at the same time, while one writes.
STORM=24
storm_test() {
    local each live
    connect "connect before a storm of logins"
    load_start "$disk"
    for each in $(seq $STORM); do
        nvme_connect --duplicate-connect >/tmp/storm.$each 2>&1 &
        storm[$each]=$!
    done
    wait "${storm[@]}"
    live() { [ "$(nvme list-subsys | grep -c ' live')" -eq $((STORM + 1)) ]; }
    try "$STORM controllers connect at the same time" eventually live || { cat /tmp/storm.*; tail "$LOG"; dmesg | tail -n 20; }
    load_end "verified writes beside a storm of logins: no error"
    no_errors "no I/O error beside a storm of logins"
    echo "the target has $(awk '/^VmRSS/ { print $2 }' "/proc/$target/status") KiB with $((STORM + 1)) controllers"
    disconnect
}

networks
chmod 600 /tmp/lunar.toml
insmod "$held"
serve
dmesg -C

connect "connect"
says "the transport is RDMA" "rdma" cat /sys/class/nvme/nvme0/transport
says "nvme list" "LUNAR VOLUME" nvme list
says "id-ctrl: data blocks with keys" "sgls *: *0x100005" nvme id-ctrl /dev/nvme0
says "id-ctrl: data in capsules" "ioccsz *: *260" nvme id-ctrl /dev/nvme0
equal "its size" $((64 << 20)) "$(blockdev --getsize64 "$disk")"
load "fio, 4 KiB, 8 deep" --rw=randwrite --bs=4k --iodepth=8 --size=512k
load "fio, 64 KiB, 8 deep" --rw=randwrite --bs=64k --iodepth=8 --size=2M
load "fio, 1 MiB, 4 deep" --rw=write --bs=1M --iodepth=4 --size=4M
load "fio, 512 bytes, 8 deep" --rw=randwrite --bs=512 --iodepth=8 --size=32k
no_errors "no I/O error"

says "discover: the subsystem over RDMA" "subnqn: *$NQN" nvme discover -t rdma -a 192.168.77.1 -s "$PORT"
says "discover: the transport" "trtype: *rdma" nvme discover -t rdma -a 192.168.77.1 -s "$PORT"
says "discover: RoCEv2" "rdma_prtype: *roce-v2" nvme discover -t rdma -a 192.168.77.1 -s "$PORT"
refuse "another subsystem is refused" nvme connect -t rdma -a 192.168.77.1 -s "$PORT" -n "$NQN-other"
says "the refusal names the transport" '"protocol": *"nvme-rdma"' "$LUNAR" explain refusal --json --socket /tmp/lunar.sock

try "mkfs.ext4" mkfs.ext4 -q -F "$second"
mkdir -p /mnt/disk
try "mount" mount "$second" /mnt/disk
head -c 1M /dev/urandom >/mnt/disk/file
kept=$(sum </mnt/disk/file)
try "umount" umount /mnt/disk
try "mount again" mount "$second" /mnt/disk
equal "the file has its contents" "$kept" "$(sum </mnt/disk/file)"
umount /mnt/disk

try "register a key" nvme resv-register "$disk" --nrkey=0xabc --rrega=0
try "reserve" nvme resv-acquire "$disk" --crkey=0xabc --rtype=1 --racqa=0
try "clear" nvme resv-release "$disk" --crkey=0xabc --rtype=1 --rrela=1
try "reset of the controller" nvme reset /dev/nvme0
find_disks "the namespaces are there again"
load "fio, 16 KiB, 8 deep, after a reset" --rw=randwrite --bs=16k --iodepth=8 --size=512k
dmesg -C

lose 1
load "fio, 4 KiB, 8 deep, one packet of a hundred is lost" --rw=randwrite --bs=4k --iodepth=8 --size=256k
load "fio, 256 KiB, 4 deep, one packet of a hundred is lost" --rw=randwrite --bs=256k --iodepth=4 --size=1M
lose 0
no_errors "no I/O error with losses"
disconnect

network 4200
connect "connect with MTU 4200 and four queues" -i 4
load "fio, 4 KiB, 8 deep, two jobs" --rw=randwrite --bs=4k --iodepth=8 --size=256k --numjobs=2 --offset_increment=8M
gaps=$(counter out_of_seq_request) packets=$(counter rcvd_pkts)
load "fio, 1 MiB, 4 deep" --rw=write --bs=1M --iodepth=4 --size=4M
gaps=$(($(counter out_of_seq_request) - gaps)) packets=$(($(counter rcvd_pkts) - packets))
echo "$packets packets with $gaps gaps"
# Packets of a run with a wrong check would all be missing.
try "the packets of a run have the right check" test $((gaps * 100)) -lt $packets
no_errors "no I/O error with MTU 4200"
disconnect

connect "connect before a second path"
try "a second path over TCP" nvme connect -t tcp -a 192.168.77.1 -s 4420 -n "$NQN" -i 1
two_are_live() { [ "$(nvme list-subsys | grep -c ' live')" -eq 2 ]; }
# controller TRANSPORT: its name.
controller() { grep -lx "$1" /sys/class/nvme/nvme*/transport | sed 's|.*/\(nvme[0-9]*\)/.*|\1|'; }
try "the host has two paths to one disk" eventually two_are_live
load_start "$disk"
try "the path over RDMA is taken away" nvme disconnect -d "$(controller rdma)"
sleep 1
try "it is connected again" nvme_connect
try "the host has two paths again" eventually two_are_live
try "the path over TCP is taken away" nvme disconnect -d "$(controller tcp)"
load_end "verified writes over changing paths: no error"
no_errors "no I/O error with two paths"
disconnect

# The MTU of a link is that of its interface when the target has started.
network 1500
address=192.168.77.3
try "ping an address on a link of frames" eventually ping -c 1 -W 2 "$address"
connect "connect to an address on a link of frames" -i 2
load "fio, 4 KiB, 8 deep, packet sockets" --rw=randwrite --bs=4k --iodepth=8 --size=256k
load "fio, 1 MiB, 4 deep, packet sockets" --rw=write --bs=1M --iodepth=4 --size=4M
no_errors "no I/O error over packet sockets"
disconnect
address=192.168.77.1
network 4200

authentication_test
whole_only storm_test
connect "connect before a kill" --reconnect-delay=2
patient "$disk"
load_start "$disk"
kill -9 "$target"
sleep 1
logins=$(grep -c "): connected" "$LOG")
connected() { [ "$(grep -c "): connected" "$LOG")" -gt "$logins" ]; }
serve
try "the host connects again, without waiting for the time-out of a command" eventually connected
load_end "verified writes over kill -9 of the target: no error"
disconnect
kill "$target"
wait "$target"
equal "the target ends well" 0 $?
finish
