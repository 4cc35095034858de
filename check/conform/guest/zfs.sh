# Pools of ZFS of this machine, whose zvols Lunar serves to an initiator of the same machine: space, snapshots, clones,
# sizes, a full pool, an unavailable pool.
. /test/lib.sh
. /test/initiator.sh
. /test/suite.sh
. /test/nvme_host.sh
. /test/settings # DRIVER FILLS KILLS

LUNAR=/test/zfs/lunar
TARGET=iqn.2026-01.io.lunar.conform:zfs
PORTAL=127.0.0.1:3260
HOST=127.0.0.1
PORT=4420
NQN=nqn.2026-01.io.lunar.conform:zfs
LOG=/tmp/lunar.log
SOCKET=/tmp/lunar.sock

lunar() { "$LUNAR" "$@" --socket "$SOCKET"; }
serve() {
    "$LUNAR" daemon --config /tmp/lunar.toml >>"$LOG" 2>&1 &
    target=$!
    # `lunar status` fails while there is a trouble.
    eventually lunar volume list
}
quit() {
    tail -n 20 "$LOG"
    finish
}
# stop: ends the daemon, which gives the zvols free.
stop() {
    kill "$target"
    wait "$target"
    equal "$1" 0 $? || tail -n 20 "$LOG"
}
# disk LUN: waits for the disk of a LUN, which is then in $disk.
disk() {
    iscsiadm -m session --rescan >/dev/null 2>&1
    eventually disk_of "$1" || { iscsiadm -m session --rescan; bad "the initiator sees LUN $1"; quit; }
    disk=$(disk_of "$1")
    eventually blockdev --getsize64 "$disk"
}
# map LUN VOLUME: maps a volume and finds its disk.
map() {
    lunar group map all "$1" "$2" >/dev/null || bad "map $2"
    disk "$1"
}
# unmap LUN VOLUME: removes the disk, the map and the volume.
unmap() {
    local found=$(disk_of "$1")
    echo 1 >"/sys/block/${found##*/}/device/delete"
    lunar group unmap all "$1" --force >/dev/null
    try "delete the volume $2" lunar volume delete "$2"
}
# property PROPERTY DATASET: its value, in bytes, after the pool has written all.
property() {
    zpool sync
    zfs get -Hp -o value "$1" "$2"
}
# removed NAME ARGUMENT...: a case that passes if ZFS removes a dataset. udev may have its device open for a moment.
removed() {
    local name=$1
    shift
    try "$name" eventually zfs destroy "$@" || zfs destroy "$@"
}
# create NAME DATASET [OPTION...]: has Lunar make a zvol.
create() {
    local name=$1 dataset=$2
    shift 2
    lunar volume create "$name" --kind zvol --dataset "$dataset" "$@"
}

for module in spl zfs; do
    insmod "/test/zfs/$module.ko" || { bad "load $module"; finish; }
done
echo "ZFS $(cat /sys/module/zfs/version)"
mkdir -p /run/udev
/usr/lib/systemd/systemd-udevd --daemon
truncate -s 640M /tmp/tank.img
truncate -s 112M /tmp/small.img
# The kernel opens files of pools outside of this root folder, so pools are on devices.
tank=$(losetup --find --show /tmp/tank.img)
small=$(losetup --find --show /tmp/small.img)
try "make a pool" zpool create -f -O compression=off tank "$tank" || finish
try "make a small pool" zpool create -f -O compression=off small "$small" || finish
try "make a zvol" zfs create -s -V 64M tank/disk
try "the zvol has a device" eventually [ -b /dev/zvol/tank/disk ] || finish

mkdir -p /tmp/state
cat >/tmp/lunar.toml <<END
[server]
cores = 2
memory = "32M"
driver = "${DRIVER//_/-}"
state = "/tmp/state"
space-threshold = 40
[api]
socket = "$SOCKET"
[volume.disk]
kind = "zvol"
dataset = "tank/disk"
$(one_target "$TARGET" "$PORTAL" '0 = "disk"' "$HOST:$PORT")
END
chmod 600 /tmp/lunar.toml
serve
daemon 120
log_in() {
    iscsiadm -m discovery -t sendtargets -p "$PORTAL" >/dev/null 2>&1
    try "$1" iscsiadm -m node -T "$TARGET" -p "$PORTAL" --login || quit
}
eventually iscsiadm -m discovery -t sendtargets -p "$PORTAL" || { bad "the daemon serves the zvol"; quit; }
log_in "login"
disk 0
first=$disk

# The limits that the device reports.
equal "the size is that of the zvol" $((64 << 20)) "$(blockdev --getsize64 "$first")"
says "the physical block is that of the zvol" "exponent=5" sg_readcap -16 "$first"
says "UNMAP takes blocks of the zvol" "unmap granularity: 0x20" sg_vpd -p bl "$first"
says "the optimal transfer length is some of its blocks" "Optimal transfer length: 0x100" sg_vpd -p bl "$first"
identity=$(sg_vpd -p di "$first" | grep 0x)
try "verified writes" fio --name=load --filename="$first" --ioengine=libaio --direct=1 --rw=randwrite --bs=4k --iodepth=8 \
    --size=2M --verify=crc32c --verify_fatal=1 --randseed=3 --output-format=terse

# Space that is given back.
head -c 8M /dev/urandom >/tmp/data
try "write 8 MiB" dd if=/tmp/data of="$first" bs=1M oflag=direct status=none
before=$(property referenced tank/disk)
try "discard 4 MiB" blkdiscard -o 0 -l 4M "$first"
after=$(property referenced tank/disk)
[ $((before - after)) -gt $((7 << 19)) ] && ok "the pool gets the space back" || { echo "$before $after"; bad "the pool gets the space back"; }
equal "what was discarded reads as zeroes" "$(head -c 4M /dev/zero | sum)" "$(read_sum "$first" count=4)"
equal "the rest is as it was" "$(tail -c 4M /tmp/data | sum)" "$(read_sum "$first" skip=4 count=4)"
# Blocks 8197 to 8296 of 512 bytes: the zvol's blocks in it, and a part of one at each end.
try "WRITE SAME with UNMAP, not aligned" sg_write_same --unmap --lba=8197 --num=100 --xferlen=512 "$first"
head -c $((8197 * 512)) /tmp/data >/tmp/wanted
truncate -s $((8297 * 512)) /tmp/wanted
tail -c +$((8297 * 512 + 1)) /tmp/data | head -c 1M >>/tmp/wanted
equal "it makes zeroes, and nothing else changes" "$(tail -c +$((4 << 20 | 1)) /tmp/wanted | head -c 1M | sum)" \
    "$(read_sum "$first" skip=4 count=1)"
log_page() { sg_logs -p 0xc "$first" 2>&1 | tr -d '\n' | tr -s ' '; }
knows_space() { log_page | grep -q "Available LBA mapping resource count: [1-9].*Used LBA mapping resource count: [1-9]"; }
try "the log page has the space of the pool" eventually knows_space || log_page
says "the daemon measures the pool" "\"tank\"" lunar top --once --json

# The same zvol as a namespace.
identity
volume_cases
disk=$first

# Sizes.
load_start "$first"
try "the zvol grows" zfs set volsize=96M tank/disk
has_size() { sg_readcap "$first" 2>&1 | grep -q "Device size: $1 bytes"; }
try "the initiator sees it without a restart" eventually has_size $((96 << 20))
load_end "verified writes meanwhile: no error"

# Lunar is killed under load.
dmesg -C
for round in $(seq "$KILLS"); do
    load_start "$first"
    kill -9 "$target"
    wait "$target"
    serve
    load_end "verified writes over kill -9 of the daemon, round $round of $KILLS"
done
equal "no I/O error after kills" "" "$(dmesg | grep 'I/O error')"

# Snapshots and clones.
sync
try "a snapshot" lunar volume snapshot disk before
says "ZFS has it" "^tank/disk@before" zfs list -H -t snapshot
kept=$(read_sum "$first" count=8)
map 1 before
snapshot=$disk
try "the source is written again" dd if=/dev/zero of="$first" bs=1M count=8 oflag=direct status=none
equal "the snapshot has the data from before" "$kept" "$(read_sum "$snapshot" count=8)"
equal "it is read-only" 1 "$(blockdev --getro "$snapshot")"
zfs snapshot tank/disk@own
fails "there is no second one of this name" "already exists" lunar volume snapshot disk again --path tank/disk@own
zfs destroy tank/disk@own
try "a clone of the snapshot" lunar volume clone before copy
map 2 copy
equal "it has the data of the snapshot" "$kept" "$(read_sum "$disk" count=8)"
try "it is written" dd if=/tmp/data of="$disk" bs=1M count=1 oflag=direct status=none
equal "the snapshot is not" "$kept" "$(read_sum "$snapshot" count=8)"
try "a clone of the zvol as it is" lunar volume clone disk twin
says "its snapshot goes with it" "^tank/disk@lunar-clone-twin.on$" zfs get -H -o name,value defer_destroy tank/disk@lunar-clone-twin
map 3 twin
equal "it has the data of the zvol" "$(read_sum "$first" count=8)" "$(read_sum "$disk" count=8)"
unmap 3 twin
removed "the zvol is left, and is removed" tank/twin
refuse "the snapshot below is gone" zfs list tank/disk@lunar-clone-twin
unmap 2 copy
unmap 1 before
removed "ZFS removes the rest" -R tank/disk@before

# Zvols that Lunar makes.
try "Lunar makes a zvol" create fresh tank/fresh --size 32M
equal "its size" $((32 << 20)) "$(property volsize tank/fresh)"
zfs create -s -V 16M tank/own
fails "it makes none in the place of one" "already exists" lunar volume create other --kind zvol --dataset tank/own --size 32M
equal "and the one that is there stays" $((16 << 20)) "$(property volsize tank/own)"
removed "it is removed by hand" tank/own
try "a size that is no multiple of the blocks" create odd tank/odd --size 9000K
equal "ZFS rounds it up" $((563 << 14)) "$(property volsize tank/odd)"
try "delete the volume" lunar volume delete odd
removed "its zvol is left" tank/odd
fails "a zvol that is not there is named" "no /dev/zvol/tank/none.*zpool import" lunar volume create none --kind zvol --dataset tank/none
try "delete the volume" lunar volume delete fresh
removed "its zvol is left" tank/fresh

# The conformance suite.
try "a zvol for the suite" create suite tank/suite --size 30M
map 4 suite
suites="SCSI.Unmap SCSI.ReadCapacity16"
[ -z "${LONG:-}" ] || suites=$(all_suites)
for name in $suites; do
    suite_of "iscsi://$PORTAL/$TARGET/4" "$name" >/tmp/outcomes
    [ -s /tmp/outcomes ] || bad "libiscsi $name: no outcome"
    wrong=
    for test in $(sed -n 's/ FAILED$//p' /tmp/outcomes); do
        reason=$(sed -n "s/^\($test\|${test%.*}\) //p" /test/zfs/libiscsi | head -n 1)
        [ -n "$reason" ] && echo "@skip libiscsi $test: $reason" || wrong="$wrong $test"
    done
    equal "libiscsi $name: $(wc -l </tmp/outcomes) outcomes" "" "$wrong"
done
unmap 4 suite
eventually zfs destroy tank/suite

# A thin zvol that is larger than its pool.
create thin small/thin --size 1G >/dev/null || bad "a thin zvol"
map 5 thin
thin=$disk
promised() { lunar status | grep -q "ZFS pool small: 1 volume there may take"; }
try "the pool has promised more than it has" eventually promised || lunar status
# part NUMBER CYCLE: 4 MiB that are others in each place and cycle.
part() { yes "$(printf '%07d.%07d' "$1" "$2")" | head -c 4M; }
same() { part "$1" "$2" | cmp -s - <(dd if="$thin" bs=4M skip="$1" count=1 iflag=direct status=none); }
is_low() { lunar status | grep -q "ZFS pool small: .* are available"; }
# An NVMe host that asks for the events of SMART is told, too.
connect "connect before the pool is full" &&
    try "ask for the events of SMART" nvme set-feature "/dev/$controller" -f 0x0b --value=1
# udevadm does nothing in a changed root folder, unless it is told to.
SYSTEMD_IGNORE_CHROOT=1 udevadm monitor --kernel --property >/tmp/events &
monitor=$!
dmesg -C
for cycle in $(seq "$FILLS"); do
    number=0
    while part $number "$cycle" >/tmp/part && dd if=/tmp/part of="$thin" bs=4M seek=$number oflag=direct status=none 2>/tmp/dd.out; do
        number=$((number + 1))
        [ $number -lt 75 ] || break
    done
    grep -q "No space left" /tmp/dd.out && [ $number -gt 2 ] && [ $number -lt 28 ] ||
        { cat /tmp/dd.out; bad "cycle $cycle: the pool is full after $number parts of 4 MiB"; break; }
    wrong=
    for at in $(seq 0 $((number - 1))); do
        same "$at" "$cycle" || wrong="$wrong $at"
    done
    [ -z "$wrong" ] || { bad "cycle $cycle: parts with other data:$wrong"; break; }
    [ "$cycle" -gt 1 ] || try "the status says that space is low" eventually is_low
    blkdiscard "$thin" || { bad "cycle $cycle: discard"; break; }
    zpool sync small
    [ $((cycle % 10)) != 0 ] || ok "cycles 1 to $cycle: every byte was right"
done
equal "the pool was filled and emptied $FILLS times, and every byte was right" "$FILLS" "$cycle"
says "a full pool is no medium error" "Space allocation failed" dmesg
equal "nor any other error of the medium" "" "$(dmesg | grep -i 'medium error')"
says "initiators are told before" "thin provisioning soft threshold" dmesg
# Of type 1 (SMART), information 2 (spare below threshold), log page 2.
# It writes the rest of its output when it ends.
kill "$monitor"
wait "$monitor"
try "an NVMe host is told" grep "NVME_AEN=0x0*20201" /tmp/events || cat /tmp/events
disconnect "disconnect after the pool was full"
unmap 5 thin
eventually zfs destroy small/thin

# An unavailable pool.
head -c 2M /dev/urandom >/tmp/data
try "write 2 MiB" dd if=/tmp/data of="$first" bs=1M oflag=direct status=none
iscsiadm -m node -T "$TARGET" -p "$PORTAL" --logout >/dev/null 2>&1
stop "the daemon ends"
try "export the pool" zpool export tank
serve
log_in "login without the pool"
troubled() { lunar status | grep -q "disk.*zpool import"; }
try "the status says what to do" eventually troubled || lunar status
try "import the pool" zpool import -d "$tank" tank
served() { ! lunar status | grep -q disk; }
try "the volume is served by itself" eventually served || lunar status
# The kernel makes no disk of a logical unit that it found inaccessible, until it looks for it anew.
iscsiadm -m node -T "$TARGET" -p "$PORTAL" --logout >/dev/null 2>&1
log_in "login again"
disk 0
equal "its data is back" "$(sum </tmp/data)" "$(read_sum "$disk" count=2)"
equal "it has the same identity" "$identity" "$(sg_vpd -p di "$disk" | grep 0x)"
iscsiadm -m node -T "$TARGET" -p "$PORTAL" --logout >/dev/null 2>&1
stop "the daemon ends again"
try "another zvol gets its name" zfs rename tank/disk tank/kept
zfs create -s -V 96M tank/disk
eventually [ -b /dev/zvol/tank/disk ]
serve
not_accepted() { lunar status | grep -Eq "disk.*(another|accept)"; }
try "another zvol is not served" eventually not_accepted || lunar status
zfs rename tank/disk tank/other
zfs rename tank/kept tank/disk
try "the right one is served by itself" eventually served || lunar status
log_in "login"
disk 0
equal "it has its data" "$(sum </tmp/data)" "$(read_sum "$disk" count=2)"
iscsiadm -m node -T "$TARGET" -p "$PORTAL" --logout >/dev/null 2>&1
stop "the daemon ends after all"
try "the pool is whole" zpool scrub -w tank
says "no error in it" "all pools are healthy" zpool status -x
finish
