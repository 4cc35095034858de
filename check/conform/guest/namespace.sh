# An NVMe drive of this machine, whose kernel has a file system on its first partition, while the program serves the
# second partition and the second namespace by NVMe commands: over iSCSI and NVMe/TCP, with discards, zeroes and flushes;
# a drive that vanishes and comes back.
. /test/lib.sh
. /test/initiator.sh
. /test/settings # DRIVER REPLUGS

LUNAR=/test/namespace/lunar
TARGET=iqn.2026-01.io.lunar.conform:namespace
NQN=nqn.2026-01.io.lunar.conform:namespace
PORTAL=127.0.0.1:3260
LOG=/tmp/lunar.log
SOCKET=/tmp/lunar.sock
KERNEL=/tmp/kernel

lunar() { "$LUNAR" "$@" --socket "$SOCKET"; }
# logged PATTERN: whether the log of the daemon has a line like this.
logged() { grep -Eq -- "$1" "$LOG"; }

# The controller of the drive, and its namespaces, by their names: their numbers change when it comes back.
drive() {
    local at
    for at in /sys/class/nvme/nvme*; do
        [ "$(cat "$at/transport")" = pcie ] && [ "$(cat "$at/state")" = live ] && { echo "${at##*/}"; return 0; }
    done
    return 1
}
# named NAME: the disk with this name.
named() {
    local at
    for at in /sys/block/nvme*; do
        [ "$(cat "$at/wwid")" = "$1" ] && [ "$(cat "$at/size")" != 0 ] && { echo "${at##*/}"; return 0; }
    done
    return 1
}
# numbered NUMBER: the disk of this namespace, before the drive has gone for the first time.
numbered() {
    local at
    for at in "/sys/block/$controller"n*; do
        [ "$(cat "$at/nsid")" = "$1" ] && { echo "${at##*/}"; return 0; }
    done
    return 1
}
# generic DISK: its generic node, which has another number than the disk if the drive came back.
generic() {
    local at
    at=$(readlink -f "/sys/block/$1")
    for at in "${at%/*}"/ng*n"${1##*n}"; do echo "/dev/${at##*/}"; done
}
namespaces() {
    controller=$(drive) && first=$(named "$first_name") && second=$(named "$second_name") || return 1
    [ -b "/dev/${first}p2" ] && [ -b "/dev/$second" ] && [ -c "$(generic "$second")" ]
}

# serve: starts the daemon with the partition and the namespace.
serve() {
    cat >/tmp/lunar.toml <<END
[server]
cores = 2
memory = "32M"
driver = "${DRIVER//_/-}"
state = "/tmp/state"
[api]
socket = "$SOCKET"
[volume.partition]
kind = "nvme"
path = "/dev/${first}p2"
write-through = true
[volume.namespace]
kind = "nvme"
path = "$(generic "$second")"
block-size = "4096"
[portal-group.p]
tag = 1
[portal.one]
address = "$PORTAL"
group = "p"
[portal.two]
address = "127.0.0.1:4420"
protocol = "nvme-tcp"
group = "p"
[target.main]
iqn = "$TARGET"
nqn = "$NQN"
portal-groups = ["p"]
[group.all]
targets = ["main"]
initiators = ["*"]
luns = { 0 = "partition", 1 = "namespace" }
END
    "$LUNAR" daemon --config /tmp/lunar.toml >>"$LOG" 2>&1 &
    target=$!
    eventually iscsiadm -m discovery -t sendtargets -p "$PORTAL" ||
        { tail -n 5 "$LOG"; bad "the daemon serves the namespaces"; finish; }
}

# connect: a session of iSCSI and one of NVMe/TCP; $disk is LUN 0, $large LUN 1, $remote the first namespace.
remote_of() {
    local at
    for at in /sys/class/nvme-subsystem/*; do
        [ "$(cat "$at/subsysnqn")" = "$NQN" ] || continue
        for at in "$at"/nvme*n*; do
            [ "$(cat "$at/nsid" 2>/dev/null)" = 1 ] && [ -b "/dev/${at##*/}" ] && { echo "/dev/${at##*/}"; return 0; }
        done
    done
    return 1
}
connect() {
    iscsiadm -m node -o delete >/dev/null 2>&1
    iscsiadm -m node -o new -T "$TARGET" -p "$PORTAL" >/dev/null
    try "login over iSCSI" iscsiadm -m node -T "$TARGET" -p "$PORTAL" --login
    try "connect over NVMe/TCP" nvme connect -t tcp -a 127.0.0.1 -s 4420 -n "$NQN" -i 2 --keep-alive-tmo=30
    eventually disk_of 0 && eventually disk_of 1 && eventually remote_of ||
        { lsblk; tail -n 5 "$LOG"; bad "the disks of the sessions"; finish; }
    disk=$(disk_of 0) large=$(disk_of 1) remote=$(remote_of)
}

# load DISK NAME ARGUMENT...: verified writes.
load() {
    local on=$1 name=$2
    shift 2
    try "$name" fio --name=load --filename="$on" --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 \
        --randseed=5 --output-format=terse "$@"
}

data_cases() {
    head -c 4M /dev/urandom >/tmp/random
    try "write 4 MiB over iSCSI" dd if=/tmp/random of="$disk" bs=1M oflag=direct status=none
    equal "the partition has them" "$(sum </tmp/random)" "$(read_sum "/dev/${first}p2" count=4)"
    equal "NVMe/TCP reads them" "$(sum </tmp/random)" "$(read_sum "$remote" count=4)"
    head -c 1M /dev/urandom >/tmp/random
    try "write 1 MiB over NVMe/TCP, with FUA" dd if=/tmp/random of="$remote" bs=64k oflag=direct,dsync status=none
    equal "iSCSI reads it" "$(sum </tmp/random)" "$(read_sum "$disk" count=1)"
    load "$disk" "fio over iSCSI, 4 KiB, 16 deep" --rw=randwrite --bs=4k --iodepth=16 --size=2M
    load "$remote" "fio over NVMe/TCP, 256 KiB, 8 deep" --rw=write --bs=256k --iodepth=8 --size=8M
    load "$large" "fio on blocks of 4096 bytes, with flushes" --rw=randwrite --bs=4k --iodepth=8 --size=1M --fsync=64
    equal "blocks of the namespace" 4096 "$(blockdev --getss "$large")"
    equal "the size of the partition" "$(blockdev --getsize64 "/dev/${first}p2")" "$(blockdev --getsize64 "$disk")"
    try "a file system of the initiator" mkfs.ext4 -q -F "$disk"
    says "the kernel of the drive sees it" "ext4" blkid -p "/dev/${first}p2"
    refuse "but cannot mount it meanwhile" mount -t ext4 "/dev/${first}p2" /mnt
}

space_cases() {
    local zeroes
    zeroes=$(head -c 1M /dev/zero | sum)
    head -c 2M /dev/urandom >/tmp/random
    try "prepare data" dd if=/tmp/random of="$disk" bs=1M oflag=direct status=none
    try "write zeroes" blkdiscard --zeroout --length 1M "$disk"
    equal "they are on the drive" "$zeroes" "$(read_sum "/dev/${first}p2" count=1)"
    equal "and nothing else is" "$(tail -c 1M /tmp/random | sum)" "$(read_sum "/dev/${first}p2" count=1 skip=1)"
    try "discard over iSCSI" blkdiscard --offset 1M --length 1M "$disk"
    equal "QEMU's drive reads discarded blocks as zeroes" "$zeroes" "$(read_sum "/dev/${first}p2" count=1 skip=1)"
    try "prepare data" dd if=/tmp/random of="$remote" bs=1M oflag=direct status=none
    try "discard over NVMe/TCP" blkdiscard --length 1M "$remote"
    equal "it is discarded on the drive" "$zeroes" "$(read_sum "/dev/${first}p2" count=1)"
    head -c 1M /dev/urandom >/tmp/random
    try "prepare data" dd if=/tmp/random of="$remote" bs=1M oflag=direct status=none
    # The drive copies by itself: 2048 blocks, in commands of as many as it takes.
    try "copy over NVMe/TCP" nvme copy "$remote" --sdlba=8192 --slbs=0,1000 --blocks=999,1047
    equal "the drive has the copy" "$(sum </tmp/random)" "$(read_sum "/dev/${first}p2" count=1 skip=4)"
    equal "and the source" "$(sum </tmp/random)" "$(read_sum "/dev/${first}p2" count=1)"
    try "flush over NVMe/TCP" nvme flush "$remote"
    try "flush over iSCSI" sg_sync "$large"
}

refusals() {
    refuses "a mounted namespace is refused" "/dev/$first is in use.*--shared" "$(generic "$first")"
    refuses "a mounted partition is refused" "/dev/${first}p1 is in use" "nvme:/dev/${first}p1"
    third=$(numbered 3)
    refuses "a format with metadata is refused" "without metadata" "$(generic "$third")"
    refuses "blocks that are too small are refused" "have 4096 bytes: add --block-size 4096" "$(generic "$second")"
    refuses "another disk is refused" "is no NVMe namespace" nvme:/dev/null
    refuses "a missing namespace is refused" "does not exist: .nvme list." nvme:/dev/ng77n1
}

# A device that is served no more is free at once, while the connections of others go on.
release_cases() {
    local loop
    truncate -s 16M /tmp/loop.img
    loop=$(losetup --find --show /tmp/loop.img)
    mkfs.ext4 -q -F "$loop"
    try "a block device is served" lunar volume create extra --kind block --path "$loop"
    refuse "it cannot be mounted meanwhile" mount -t ext4 "$loop" /mnt
    try "it is served no more" lunar volume delete extra
    try "it can be mounted" eventually mount -t ext4 "$loop" /mnt
    umount /mnt
    losetup --detach "$loop"
}

gone() { lunar status 2>&1 | grep -q "is gone"; }
# turs: the status of a command to the disk, which is not opened for that.
turs() { sg_raw -vv "$node" 00 00 00 00 00 00 2>&1; }
not_ready() { turs | grep -qi "not ready"; }
back() { ! lunar status 2>&1 | grep -q "is gone" && sg_raw "$node" 00 00 00 00 00 00; }
same() { [ "$(read_sum "$disk" count=2)" = "$1" ]; }
replug_cases() {
    local round load wanted node
    node=$(sg_of "$disk")
    for round in $(seq "$REPLUGS"); do
        head -c 2M /dev/urandom >/tmp/random
        wanted=$(sum </tmp/random)
        try "$round: prepare data" dd if=/tmp/random of="$disk" bs=1M oflag=direct status=none
        # Reads and writes for as long as the drive is there; errors are the point.
        fio --name=load --filename="$disk" --offset=8M --ioengine=libaio --direct=1 --rw=randrw --bs=64k --iodepth=8 \
            --size=8M --time_based --runtime=60 --continue_on_error=all --output-format=terse >/dev/null 2>&1 &
        load=$!
        nap 1
        echo 1 >"/sys/class/nvme/$controller/device/remove"
        try "$round: lunar status says that it is gone" eventually gone
        try "$round: commands end with NOT READY" eventually not_ready || turs
        kill $load 2>/dev/null
        wait $load 2>/dev/null
        echo 1 >/sys/bus/pci/rescan
        try "$round: the drive is back" eventually namespaces || { dmesg | tail -n 20; ls /sys/block /dev/ng*; finish; }
        # Writes of the volume with a cache may be lost: the operator decides.
        try "$round: the volume with write-through is served by itself" eventually logged "volume partition: .* is served"
        says "$round: the other needs the word of the operator" "lunar volume accept namespace" lunar status
        try "$round: which is given" lunar volume accept namespace
        try "$round: the disks work again" eventually back
        try "$round: the data is there" eventually same "$wanted"
        load "$disk" "$round: fio over iSCSI" --rw=randwrite --bs=4k --iodepth=8 --size=1M
        load "$large" "$round: fio on the namespace" --rw=randwrite --bs=4k --iodepth=8 --size=512k
        : >"$LOG"
    done
}

eventually drive || { bad "the kernel has the drive"; finish; }
controller=$(drive)
eventually numbered 1 && eventually numbered 2 && eventually numbered 3
first=$(numbered 1) second=$(numbered 2)
first_name=$(cat "/sys/block/$first/wwid") second_name=$(cat "/sys/block/$second/wwid")
printf 'size=64M\n,\n' | sfdisk -q "/dev/$first" || bad "partitions"
try "the kernel has the namespaces and partitions" eventually namespaces
try "a file system of the kernel" mkfs.ext4 -q -F "/dev/${first}p1"
mkdir -p "$KERNEL"
try "it is mounted" mount "/dev/${first}p1" "$KERNEL"
daemon 60

refusals
serve
logged "is namespace 1 of .*lunar, .*blocks of 512 bytes" && ok "the log names the namespace" ||
    { cat "$LOG"; bad "the log names the namespace"; }
connect
# The kernel goes on using the drive all the time.
fio --name=kernel --directory="$KERNEL" --ioengine=libaio --direct=1 --rw=randwrite --bs=4k --iodepth=4 --size=3M \
    --rate_iops=40 --verify=crc32c --verify_fatal=1 --output-format=terse >/tmp/fio.out 2>&1 &
kernel=$!
says "lunar volume list" "nvme" lunar volume list
data_cases
space_cases
release_cases
if wait $kernel; then ok "the file system of the kernel is intact"; else tail -n 8 /tmp/fio.out; bad "the file system of the kernel is intact"; fi
umount "$KERNEL"
try "it is clean" fsck.ext4 -fn "/dev/${first}p1"
replug_cases
nvme disconnect -n "$NQN" >/dev/null 2>&1
iscsiadm -m node -T "$TARGET" -p "$PORTAL" --logout >/dev/null 2>&1
kill "$target"
wait "$target"
equal "the daemon ends" 0 $? || tail -n 20 "$LOG"

# Without privileges and without a sandbox. The names are others since the drive is back.
eventually namespaces
namespaces
mkdir -p /tmp/user
chown 1000 /tmp/user "$(generic "$second")" "/dev/$second"
setpriv --reuid=1000 --clear-groups env XDG_STATE_HOME=/tmp/user "$LUNAR" serve --driver "$DRIVER" --cores 2 \
    --memory 32 --name "$TARGET" --listen "$PORTAL" --block-size 4096 "$(generic "$second")" >"$LOG" 2>&1 &
target=$!
eventually iscsiadm -m discovery -t sendtargets -p "$PORTAL" || { cat "$LOG"; bad "a user serves a namespace"; finish; }
iscsiadm -m node -o delete >/dev/null 2>&1
iscsiadm -m node -o new -T "$TARGET" -p "$PORTAL" >/dev/null
try "login at a user's server" iscsiadm -m node -T "$TARGET" -p "$PORTAL" --login
eventually disk_of 0 && load "$(disk_of 0)" "fio on a user's server" --rw=randwrite --bs=4k --iodepth=8 --size=512k --fsync=64
try "a user's server discards" blkdiscard --length 1M "$(disk_of 0)"
iscsiadm -m node -T "$TARGET" -p "$PORTAL" --logout >/dev/null 2>&1
kill "$target"
wait "$target"
equal "it ends" 0 $? || tail -n 20 "$LOG"
finish
