# The kernel's own NVMe/TCP host with nvme-cli, file systems and fio; and both faces of one volume at once.
. /test/lib.sh
. /test/both.sh
. /test/access.sh
. /test/protected.sh
. /test/settings # PORTAL TARGET (iSCSI), HOST PORT PORT2 NQN, and perhaps WHOLE, the same of a SERVICE and PROTECTED_*

# quiet NAME: the kernel has not complained.
quiet() {
    local said
    said=$(dmesg | grep -E 'I/O error|timeout|digest error|failed|unexpected|not supported|Invalid' | grep -v 'resume')
    equal "the kernel has no complaint, $1" "" "$said"
    dmesg -C
}

load() {
    local name=$1
    shift
    try "$name" fio --name=load --filename="$disk" --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 \
        --randseed=7 --output-format=terse "$@"
}

there() { test -b "$disk"; }

connect() {
    local name=$1
    shift
    # A guest on a busy machine is late with its keep-alives.
    try "$name" nvme connect -t tcp -a "$HOST" -s "$PORT" -n "$NQN" -i 2 --keep-alive-tmo=30 "$@" || { dmesg | tail -n 20; return 1; }
    disk=/dev/nvme0n1
    eventually there || { dmesg | tail -n 20; bad "$name: no disk"; return 1; }
    controller=$(basename "$(ls -d /sys/class/nvme/nvme* | head -n 1)")
}

disconnect() {
    try "$1" nvme disconnect -n "$NQN"
    eventually test ! -b /dev/nvme0n1
}

identity() {
    mkdir -p /etc/nvme
    nvme gen-hostnqn >/etc/nvme/hostnqn
    sed 's/.*uuid://' /etc/nvme/hostnqn >/etc/nvme/hostid
    echo 16777216 >/proc/sys/net/core/rmem_max
    dmesg -C
}

# What an administrator looks at.
inquiry() {
    local c=/dev/$controller page
    says "nvme list" "LUNAR VOLUME" nvme list
    says "nvme list-subsys" "$NQN" nvme list-subsys
    says "id-ctrl" "subnqn *: *$NQN" nvme id-ctrl "$c"
    says "id-ns" "nvmcap *: *[1-9]" nvme id-ns "$disk"
    says "ns-descs" "uuid *: *[0-9a-f]" nvme ns-descs "$disk"
    says "ns-descs: EUI-64" "eui64 *: *02" nvme ns-descs "$disk"
    says "list-ns" "0x2" nvme list-ns "$c"
    says "list-ctrl" "." nvme list-ctrl "$c"
    says "smart-log" "temperature" nvme smart-log "$c"
    # What is not there leaves an entry, and is counted.
    refuse "a log page that is not there" nvme get-log "$c" --log-id=0x7f --log-len=512
    says "error-log has it" "sqid[[:space:]]*: *0" nvme error-log "$c" -e 1
    says "smart-log counts it" "num_err_log_entries[[:space:]]*: *[1-9]" nvme smart-log "$c"
    says "fw-log" "frs1" nvme fw-log "$c"
    # What effects-log shows depends on properties that this version of the tool cannot read over fabrics.
    says "log page of effects" "01 00 00 00" nvme get-log "$c" --log-id=5 --log-len=4096
    says "ana-log" "optimized" nvme ana-log "$c"
    says "supported log pages" "Persistent Event" nvme supported-log-pages "$c"
    try "changed-ns-list-log" nvme changed-ns-list-log "$c"
    says "Abort of what is not there" "result: *(0x)?0*1$" nvme admin-passthru "$c" --opcode=8 --cdw10=0x70001
    try "resv-notif-log" nvme resv-notif-log "$c"
    for page in 1 2 4 5 6 7 0xa 0xb 0xe 0xf 0x16; do
        try "get-feature $page" nvme get-feature "$c" -f "$page"
    done
    try "get-feature 0x81" nvme get-feature "$c" -f 0x81 --data-len=16 --cdw11=1
    for page in 0x82 0x83; do
        try "get-feature $page" nvme get-feature "$disk" -n 1 -f "$page"
    done
    refuse "interrupts wait for nothing over fabrics" nvme get-feature "$c" -f 8
    for select in 1 2 3; do
        try "get-feature, selector $select" nvme get-feature "$c" -f 4 -s $select
    done
    try "set-feature, temperature threshold" nvme set-feature "$c" -f 4 -v 400
    says "and it stays" "0x0*190" nvme get-feature "$c" -f 4
    says "write cache is known to the kernel" "write (back|through)" cat /sys/block/nvme0n1/queue/write_cache
    says "the kernel knows it by its UUID" "uuid\." cat /sys/block/nvme0n1/wwid
}

# Commands one by one, on the first blocks.
commands() {
    local block
    block=$(blockdev --getss "$disk")
    head -c $((block * 16)) /dev/urandom >/tmp/random
    head -c $((block * 16)) /dev/zero >/tmp/zeroes
    try "nvme write" nvme write "$disk" -s 0 -c 15 -z $((block * 16)) -d /tmp/random
    try "nvme read" nvme read "$disk" -s 0 -c 15 -z $((block * 16)) -d /tmp/read
    equal "what was written is read" "$(sum </tmp/random)" "$(sum </tmp/read)"
    try "nvme compare" nvme compare "$disk" -s 0 -c 15 -z $((block * 16)) -d /tmp/random
    refuse "nvme compare with other data" nvme compare "$disk" -s 1 -c 15 -z $((block * 16)) -d /tmp/random
    try "nvme verify" nvme verify "$disk" -s 0 -c 15
    try "nvme flush" nvme flush "$disk" -n 1
    try "nvme copy" nvme copy "$disk" --sdlba=64 --slbs=0 --blocks=15
    try "read the copy" nvme read "$disk" -s 64 -c 15 -z $((block * 16)) -d /tmp/read
    equal "the copy is the same" "$(sum </tmp/random)" "$(sum </tmp/read)"
    try "nvme write-uncor" nvme write-uncor "$disk" -s 3 -c 1
    refuse "what is uncorrectable is not read" nvme read "$disk" -s 0 -c 15 -z $((block * 16)) -d /tmp/read
    refuse "and not copied" nvme copy "$disk" --sdlba=64 --slbs=0 --blocks=15
    try "nvme write-zeroes" nvme write-zeroes "$disk" -s 0 -c 15
    try "read the zeroes" nvme read "$disk" -s 0 -c 15 -z $((block * 16)) -d /tmp/read
    equal "they are zeroes" "$(sum </tmp/zeroes)" "$(sum </tmp/read)"
    try "nvme dsm" nvme dsm "$disk" --ad --slbs=64 --blocks=16
    refuse "blocks that are not there" nvme read "$disk" -s 99999999999 -c 0 -z "$block" -d /tmp/read
    refuse "a command that is not there" nvme io-passthru "$disk" --opcode=0x7e --namespace-id=1
    dmesg -C
}

reservations() {
    local key=0x1234
    try "resv-register" nvme resv-register "$disk" -n 1 --nrkey=$key --rrega=0
    try "resv-acquire" nvme resv-acquire "$disk" -n 1 --crkey=$key --rtype=1 --racqa=0
    says "resv-report" "regctl *: *1" nvme resv-report "$disk" -n 1 -e -d 4096
    says "resv-report: write exclusive" "rtype *: *1" nvme resv-report "$disk" -n 1 -e -d 4096
    try "its holder writes" dd if=/dev/zero of="$disk" bs=4k count=1 oflag=direct status=none
    try "resv-acquire, preempt" nvme resv-acquire "$disk" -n 1 --crkey=$key --prkey=$key --rtype=3 --racqa=1
    says "resv-report: exclusive access, registrants only" "rtype *: *[34]" nvme resv-report "$disk" -n 1 -e -d 4096
    try "resv-release, clear" nvme resv-release "$disk" -n 1 --crkey=$key --rrela=1
    says "nobody is left after that" "regctl *: *0" nvme resv-report "$disk" -n 1 -e -d 4096
    try "register once more" nvme resv-register "$disk" -n 1 --nrkey=$key --rrega=0
    try "resv-acquire once more" nvme resv-acquire "$disk" -n 1 --crkey=$key --rtype=1 --racqa=0
    try "resv-release" nvme resv-release "$disk" -n 1 --crkey=$key --rtype=1 --rrela=0
    refuse "another key" nvme resv-register "$disk" -n 1 --crkey=0x99 --rrega=1
    try "unregister" nvme resv-register "$disk" -n 1 --crkey=$key --rrega=1
    says "nobody is left" "regctl *: *0" nvme resv-report "$disk" -n 1 -e -d 4096
    dmesg -C
}

discard() {
    try "blkdiscard" blkdiscard "$disk"
    equal "discarded blocks read as zeroes" "$(head -c 4M /dev/zero | sum)" "$(read_sum "$disk" count=4)"
    try "blkdiscard --zeroout" blkdiscard --zeroout --length 4M "$disk"
}

file_system() {
    local before
    try "mkfs.ext4" mkfs.ext4 -q -F "$disk" || return
    mkdir -p /mnt/disk
    try "mount" mount "$disk" /mnt/disk || return
    head -c 6M /dev/urandom >/mnt/disk/random
    cp -r /test /usr/bin/bash /mnt/disk/
    before=$(cd /mnt/disk && find . -type f -exec sha256sum {} + | sort)
    try "fstrim" fstrim /mnt/disk
    try "umount" umount /mnt/disk
    try "mount again" mount "$disk" /mnt/disk || return
    equal "the files are there" "$before" "$(cd /mnt/disk && find . -type f -exec sha256sum {} + | sort)"
    umount /mnt/disk
    try "fsck.ext4" fsck.ext4 -f -n "$disk"
}

self_tests() {
    local c=/dev/$controller
    try "device-self-test, short" nvme device-self-test "$c" -n 1 -s 1
    try "device-self-test, extended, all" nvme device-self-test "$c" -n 0xffffffff -s 2
    says "self-test-log has both" "Self Test Code *: *1" nvme self-test-log "$c" --dst-entries=2
    refuse "a self-test of nothing" nvme device-self-test "$c" -n 99 -s 1
}

sanitized() { nvme sanitize-log "/dev/$controller" | grep -Eq 'SSTAT\) *: *(0x)?0*1( |$)'; }

sanitize() {
    try "nvme sanitize, block erase" nvme sanitize "/dev/$controller" --sanact=2
    eventually sanitized || nvme sanitize-log "/dev/$controller"
    try "sanitize-log: it is done" sanitized
    equal "what was sanitized is empty" "$(head -c 4M /dev/zero | sum)" "$(read_sum "$disk" count=4)"
    refuse "crypto erase, which there is not" nvme sanitize "/dev/$controller" --sanact=4
    dmesg -C
}

# The log is read as it was when its reading began.
events() {
    local c=/dev/$controller log
    try "the clock is set" nvme set-feature "$c" -f 0x0e -v 0 --data-len=8 --data=/tmp/clock
    try "persistent-event-log, establish" nvme persistent-event-log "$c" -a 1
    log=$(nvme persistent-event-log "$c" -a 0 2>&1) || { echo "$log"; bad "persistent-event-log"; }
    for event in "SMART|Health" "Timestamp" "Power-on|Power-On" "Format" "Sanitize" "Set Feature"; do
        says "persistent-event-log tells of $event" "$event" printf '%s\n' "$log"
    done
    refuse "a second beginning" nvme persistent-event-log "$c" -a 1
    try "persistent-event-log, release" nvme persistent-event-log "$c" -a 2
    refuse "reading what was not begun" nvme persistent-event-log "$c" -a 0 -l 512
    try "persistent-event-log once more" nvme persistent-event-log "$c" -a 1
    try "and released" nvme persistent-event-log "$c" -a 2
}

# way SERVICE: the controller that is reached there.
way() {
    local found
    for found in /sys/class/nvme/nvme*; do
        grep -q "trsvcid=$1" "$found/address" && { echo "${found##*/}"; return 0; }
    done
    return 1
}

# state_of SERVICE: what asymmetric access says of the way there.
state_of() { cat "/sys/class/nvme/$(way "$1")"/nvme*n1/ana_state; }
fares() { [ "$(state_of "$1")" = "$2" ]; }

# Two ways to one namespace; access over NVMe and over iSCSI is one state, so an initiator of the same volume changes it.
ways() {
    connect "the first way" || return
    try "the second way" nvme connect -t tcp -a "$HOST" -s "$PORT2" -n "$NQN" -i 2 --keep-alive-tmo=30
    eventually fares "$PORT" optimized
    try "both ways are optimized" eventually fares "$PORT2" optimized
    iscsi_again "and an initiator of the volume" || return
    load_start "$disk"
    try "SET TARGET PORT GROUPS over iSCSI: the second is not optimized" set_state 2 1 "$other"
    try "the NVMe host is told" eventually fares "$PORT2" non-optimized
    try "it is unavailable" set_state 2 3 "$other"
    try "which is inaccessible" eventually fares "$PORT2" inaccessible
    try "and back" set_state 2 0 "$other"
    eventually fares "$PORT2" optimized
    try "the first is on standby" set_state 1 2 "$other"
    try "which is inaccessible, too" eventually fares "$PORT" inaccessible
    sleep 1
    try "and back again" set_state 1 0 "$other"
    try "both ways are optimized again" eventually fares "$PORT" optimized
    try "one way is left" nvme disconnect -d "$(way "$PORT")"
    sleep 1
    load_end "verified writes while ways changed, and one went: no error"
    iscsi_logout
    equal "no I/O error" "" "$(dmesg | grep 'I/O error')"
    disconnect "disconnect, ways"
    dmesg -C
}

# The harness kills the target and starts it again.
restart() {
    connect "connect before the restart" --reconnect-delay=1 --ctrl-loss-tmo=600 || return
    keep "$disk" 8 32
    restart_in 2
    load "fio goes on over a restart of the target" --rw=randwrite --bs=4k --iodepth=8 --size=4M --rate_iops=100
    wait
    equal "nothing else is lost" "$kept" "$(read_sum "$disk" count=8 skip=32)"
    equal "no I/O error over the restart" "" "$(dmesg | grep 'I/O error')"
    disconnect "disconnect after the restart"
    dmesg -C
}

# A service that follows a file: a volume that grows, which an initiator has, too, and one of 4096-byte blocks.
service() {
    local PORT=$SERVICE_PORT NQN=$SERVICE_NQN PORTAL=$SERVICE_PORTAL TARGET=$SERVICE_TARGET
    connect "connect to a service" || return
    iscsiadm -m node -o new -T "$TARGET" -p "$PORTAL" >/dev/null
    iscsi_again "and an initiator of its volume" || return
    grows 96
    iscsi_logout
    disk=/dev/nvme0n2
    try "a second namespace" eventually there
    equal "of 4096-byte blocks" 4096 "$(blockdev --getss "$disk")"
    refuse "which are read whole only" dd if="$disk" of=/dev/null bs=512 count=1 iflag=direct status=none
    load "fio, 4096-byte blocks" --rw=randwrite --bsrange=4k-256k --blockalign=4k --iodepth=8 --size=8M
    file_system
    quiet "with 4096-byte blocks"
    disconnect "disconnect from the service"
}

# Namespaces that the host makes itself, of what the service gives for it, and ends again.
makes() {
    local PORT=$SERVICE_PORT NQN=$SERVICE_NQN c own said made
    connect "connect to where hosts make namespaces" || return
    c=/dev/$controller
    own=$(nvme id-ctrl "$c" | sed -n 's/^cntlid *: *//p')
    said=$(nvme create-ns "$c" --nsze=4096 --ncap=4096 --block-size=4096 2>&1)
    made=$(printf '%s\n' "$said" | sed -n 's/.*nsid: *//p')
    echo "$said"
    equal "create-ns" 3 "$made" || { disconnect "disconnect from where none was made"; return; }
    disk=/dev/nvme0n$made
    says "list-ns --all: it is there" "0x$made\$" nvme list-ns "$c" --all
    refuse "nobody has it yet" there
    try "attach-ns" nvme attach-ns "$c" --namespace-id="$made" --controllers="$own"
    try "the kernel is told" eventually there
    equal "of as many blocks" 16777216 "$(blockdev --getsize64 "$disk")"
    equal "of the size that was asked for" 4096 "$(blockdev --getss "$disk")"
    load "fio, a namespace that the host has made" --rw=randwrite --bs=4k --iodepth=8 --size=4M
    refuse "more than there is left" nvme create-ns "$c" --nsze=1048576 --ncap=1048576 --block-size=4096
    try "detach-ns" nvme detach-ns "$c" --namespace-id="$made" --controllers="$own"
    try "the kernel is told that it goes" eventually test ! -b "$disk"
    try "delete-ns" nvme delete-ns "$c" --namespace-id="$made"
    equal "and no more of it" "" "$(nvme list-ns "$c" --all | grep "0x$made\$")"
    quiet "about namespaces that come and go"
    disconnect "disconnect from where hosts make namespaces"
}

identity
printf '\0\100\103\172\223\1\0\0' >/tmp/clock
says "discover" "subnqn: *$NQN" nvme discover -t tcp -a "$HOST" -s "$PORT"
connect "connect" || finish
whole inquiry
whole commands
whole reservations
discard
load "fio, 4 KiB, 32 deep" --rw=randwrite --bs=4k --iodepth=32 --size=4M
load "fio, 1 MiB, 8 deep" --rw=randwrite --bs=1M --iodepth=8 --size=16M
file_system
quiet "after reading what was written"
whole both
try "reset" nvme reset "/dev/$controller"
eventually grep -q live "/sys/class/nvme/$controller/state"
equal "the controller lives after a reset" live "$(cat "/sys/class/nvme/$controller/state")"
try "nvme format" nvme format "$disk" --force
equal "a formatted namespace is empty" "$(head -c 4M /dev/zero | sum)" "$(read_sum "$disk" count=4)"
whole self_tests
whole sanitize
whole events
keep "$disk" 16 0
disconnect "disconnect"
dmesg -C
connect "connect with digests" --hdr-digest --data-digest || finish
equal "the data is still there" "$kept" "$(read_sum "$disk" count=16)"
load "fio with digests" --rw=randwrite --bsrange=4k-256k --blockalign=4k --iodepth=8 --size=4M
quiet "with digests"
disconnect "disconnect, digests"
whole ways
whole protected_namespace
restart
whole service
whole makes
try "connect-all" nvme connect-all -t tcp -a "$HOST" -s "$PORT"
# The discovery controller has taken the first number.
found() { disk=$(ls /dev/nvme?n1) && test -b "$disk"; }
eventually found || bad "connect-all: no disk"
load "fio without flow control" --rw=randwrite --bsrange=4k-256k --blockalign=4k --iodepth=8 --size=4M
try "disconnect-all" nvme disconnect-all
finish
