# The kernel's NVMe/TCP host with nvme-cli, file systems and fio; and one volume over NVMe/TCP and iSCSI at once.
. /test/lib.sh
. /test/shared.sh
. /test/access.sh
. /test/protected.sh
. /test/nvme_host.sh
. /test/settings # PORTAL TARGET (iSCSI), HOST PORT PORT2 NQN, and perhaps FULL, SERVICE_* and PROTECTED_*

# The persistent event log: its reporting context is established, read and released.
persistent_events() {
    local c=/dev/$controller log
    try "set-feature, timestamp" nvme set-feature "$c" -f 0x0e --value=0 --data-len=8 --data=/tmp/clock
    try "persistent-event-log, establish" nvme persistent-event-log "$c" -a 1
    log=$(nvme persistent-event-log "$c" -a 0 2>&1) || { echo "$log"; bad "persistent-event-log"; }
    for event in "SMART|Health" "Timestamp" "Power-on|Power-On" "Format" "Sanitize" "Set Feature"; do
        says "persistent-event-log has an event: $event" "$event" printf '%s\n' "$log"
    done
    refuse "establishing a second context" nvme persistent-event-log "$c" -a 1
    try "persistent-event-log, release" nvme persistent-event-log "$c" -a 2
    refuse "reading without a context" nvme persistent-event-log "$c" -a 0 -l 512
    try "persistent-event-log, establish again" nvme persistent-event-log "$c" -a 1
    try "persistent-event-log, release again" nvme persistent-event-log "$c" -a 2
}

# controller_at PORT: the controller that is connected to this port.
controller_at() {
    local found
    for found in /sys/class/nvme/nvme*; do
        grep -q "trsvcid=$1" "$found/address" && { echo "${found##*/}"; return 0; }
    done
    return 1
}

# ana_state PORT: the ANA state of the path to this port.
ana_state() { cat "/sys/class/nvme/$(controller_at "$1")"/nvme*n1/ana_state; }
ana_state_is() { [ "$(ana_state "$1")" = "$2" ]; }

# Two paths to one namespace. ANA and ALUA share one state, so that an initiator of the same volume can change it.
multipath_test() {
    connect "connect the first path" || return
    try "connect the second path" nvme connect -t tcp -a "$HOST" -s "$PORT2" -n "$NQN" -i 2 --keep-alive-tmo=30
    eventually ana_state_is "$PORT" optimized
    try "both paths are optimized" eventually ana_state_is "$PORT2" optimized
    iscsi_relogin "login to the volume over iSCSI" || return
    load_start "$disk"
    try "SET TARGET PORT GROUPS over iSCSI: second group non-optimized" set_state 2 1 "$other"
    try "ANA state of the second path: non-optimized" eventually ana_state_is "$PORT2" non-optimized
    try "SET TARGET PORT GROUPS over iSCSI: second group unavailable" set_state 2 3 "$other"
    try "ANA state of the second path: inaccessible" eventually ana_state_is "$PORT2" inaccessible
    try "SET TARGET PORT GROUPS over iSCSI: second group optimized" set_state 2 0 "$other"
    eventually ana_state_is "$PORT2" optimized
    try "SET TARGET PORT GROUPS over iSCSI: first group standby" set_state 1 2 "$other"
    try "ANA state of the first path: inaccessible" eventually ana_state_is "$PORT" inaccessible
    sleep 1
    try "SET TARGET PORT GROUPS over iSCSI: first group optimized" set_state 1 0 "$other"
    try "ANA state of the first path: optimized" eventually ana_state_is "$PORT" optimized
    try "disconnect the first path" nvme disconnect -d "$(controller_at "$PORT")"
    sleep 1
    load_end "verified writes over changes of the ANA state and the loss of a path: no error"
    iscsi_logout
    equal "no I/O error" "" "$(dmesg | grep 'I/O error')"
    disconnect "disconnect, multipath"
    dmesg -C
}

# The test program kills and restarts the target.
restart() {
    connect "connect before the restart" --reconnect-delay=1 --ctrl-loss-tmo=600 || return
    write_random "$disk" 8 32
    restart_in 2
    load "fio goes on over a restart of the target" --rw=randwrite --bs=4k --iodepth=8 --size=2M --rate_iops=50
    wait
    equal "data written before is intact" "$kept_sum" "$(read_sum "$disk" count=8 skip=32)"
    equal "no I/O error over the restart" "" "$(dmesg | grep 'I/O error')"
    disconnect "disconnect after the restart"
    dmesg -C
}

# A daemon with a configuration file: a volume that grows, which an initiator uses, too, and one with 4096-byte blocks.
service() {
    local PORT=$SERVICE_PORT NQN=$SERVICE_NQN PORTAL=$SERVICE_PORTAL TARGET=$SERVICE_TARGET
    connect "connect to a daemon" || return
    iscsiadm -m node -o new -T "$TARGET" -p "$PORTAL" >/dev/null
    iscsi_relogin "login to its volume over iSCSI" || return
    growth_test 96
    iscsi_logout
    disk=/dev/nvme0n2
    try "a second namespace" eventually exists
    equal "it has 4096-byte blocks" 4096 "$(blockdev --getss "$disk")"
    refuse "a read of 512 bytes is refused" dd if="$disk" of=/dev/null bs=512 count=1 iflag=direct status=none
    load "fio, 4096-byte blocks" --rw=randwrite --bsrange=4k-256k --blockalign=4k --iodepth=8 --size=8M
    file_system
    quiet "with 4096-byte blocks"
    disconnect "disconnect from the daemon"
}

# Namespace Management and Attachment: the host creates a namespace from the pool and deletes it.
namespace_management() {
    local PORT=$SERVICE_PORT NQN=$SERVICE_NQN c own output made
    connect "connect for Namespace Management" || return
    c=/dev/$controller
    own=$(nvme id-ctrl "$c" | sed -n 's/^cntlid *: *//p')
    output=$(nvme create-ns "$c" --nsze=4096 --ncap=4096 --block-size=4096 2>&1)
    made=$(printf '%s\n' "$output" | sed -n 's/.*nsid: *//p')
    echo "$output"
    equal "create-ns" 3 "$made" || { disconnect "disconnect, Namespace Management"; return; }
    disk=/dev/nvme0n$made
    says "list-ns --all lists it" "0x$made\$" nvme list-ns "$c" --all
    refuse "it is not attached yet" exists
    try "attach-ns" nvme attach-ns "$c" --namespace-id="$made" --controllers="$own"
    try "the kernel finds the attached namespace" eventually exists
    equal "it has the requested capacity" 16777216 "$(blockdev --getsize64 "$disk")"
    equal "it has the requested block size" 4096 "$(blockdev --getss "$disk")"
    load "fio on the created namespace" --rw=randwrite --bs=4k --iodepth=8 --size=4M
    refuse "create-ns beyond the pool's space" nvme create-ns "$c" --nsze=1048576 --ncap=1048576 --block-size=4096
    try "detach-ns" nvme detach-ns "$c" --namespace-id="$made" --controllers="$own"
    try "the kernel removes the detached namespace" eventually test ! -b "$disk"
    try "delete-ns" nvme delete-ns "$c" --namespace-id="$made"
    equal "list-ns --all does not list it" "" "$(nvme list-ns "$c" --all | grep "0x$made\$")"
    quiet "after Namespace Management"
    disconnect "disconnect, Namespace Management"
}

identity
printf '\0\100\103\172\223\1\0\0' >/tmp/clock
says "discover" "subnqn: *$NQN" nvme discover -t tcp -a "$HOST" -s "$PORT"
connect "connect" || finish
full_only inquiry
full_only says "list-ns has the second namespace" "0x2" nvme list-ns "/dev/$controller"
full_only commands
full_only reservations
discard
load "fio, 4 KiB, 32 deep" --rw=randwrite --bs=4k --iodepth=32 --size=4M
load "fio, 1 MiB, 8 deep" --rw=randwrite --bs=1M --iodepth=8 --size=16M
file_system
quiet "after reading what was written"
full_only shared_test
try "reset" nvme reset "/dev/$controller"
eventually grep -q live "/sys/class/nvme/$controller/state"
equal "the controller is live after a reset" live "$(cat "/sys/class/nvme/$controller/state")"
try "nvme format" nvme format "$disk" --force
equal "a formatted namespace reads as zeroes" "$(head -c 4M /dev/zero | sum)" "$(read_sum "$disk" count=4)"
full_only self_tests
full_only sanitize
full_only persistent_events
write_random "$disk" 16 0
disconnect "disconnect"
dmesg -C
connect "connect with digests" --hdr-digest --data-digest || finish
equal "the data is unchanged after a reconnect" "$kept_sum" "$(read_sum "$disk" count=16)"
load "fio with digests" --rw=randwrite --bsrange=4k-256k --blockalign=4k --iodepth=8 --size=4M
quiet "with digests"
disconnect "disconnect, digests"
full_only multipath_test
full_only protected_namespace
restart
full_only service
full_only namespace_management
try "connect-all" nvme connect-all -t tcp -a "$HOST" -s "$PORT"
# The discovery controller has the first number.
found() { disk=$(ls /dev/nvme?n1) && test -b "$disk"; }
eventually found || bad "connect-all: no disk"
load "fio without flow control" --rw=randwrite --bsrange=4k-256k --blockalign=4k --iodepth=8 --size=4M
try "disconnect-all" nvme disconnect-all
finish
