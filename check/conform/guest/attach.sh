# A file system on a volume of another Lunar, over SCSI over Scheduled Transfer and ublk: kills of the target under
# load, links that are pulled, another volume in its place.
. /test/lib.sh
. /test/settings # KILLS

LUNAR=/test/attach/lunar
IMAGE=/tmp/disk.img
OTHER=/tmp/other.img
NAME=iqn.2026-01.io.lunar.conform:attach
FAR=/tmp/far.log
LOG=/tmp/near.log
# Both networks lead to the same port.
ADDRESS=udp:192.168.70.1:18181
BOTH=st:$ADDRESS,udp:192.168.71.1:18181

# serve VOLUME...: starts the target in its network.
serve() {
    : >"$FAR"
    ip netns exec far "$LUNAR" serve --cores 1 --memory 32 --name "$NAME" --listen 127.0.0.1:3260 \
        --st udp:0.0.0.0:18181 "$@" >>"$FAR" 2>&1 &
    target=$!
}
served() { grep -q 'Scheduled Transfer, private layout' "$FAR"; }
# start VOLUME...: starts the target, and waits until it serves.
start() {
    serve "$@"
    eventually served || { cat "$FAR"; bad "the target starts"; }
}
kill_target() {
    kill -9 "$target"
    wait "$target" 2>/dev/null
}
logged() { grep -q -- "$1" "$LOG"; }
start_near() {
    "$LUNAR" daemon --config /tmp/near/lunar.toml >>"$LOG" 2>&1 &
    near=$!
}
bytes_of() { cat "/sys/class/net/$1/statistics/tx_bytes"; }
# load MIB: verified writes in the background, into a file of the file system; $fio is their process.
load() {
    fio --name=load --filename=/mnt/disk/load --ioengine=libaio --direct=1 --rw=randwrite --bs=16k --iodepth=8 \
        --size="$1M" --rate_iops=40 --verify=crc32c --verify_fatal=1 --randseed=5 --output-format=terse \
        >/tmp/fio.out 2>&1 &
    fio=$!
}

modules_of /test/attach/modules
if [ ! -e /dev/ublk-control ]; then
    echo "@skip attach: this kernel has no ublk_drv"
    finish
fi
ip link set lo up
ip netns add far
for net in 0 1; do
    ip link add "near$net" type veth peer name "far$net"
    ip link set "far$net" netns far
    ip address add "192.168.7$net.2/24" dev "near$net"
    ip netns exec far ip address add "192.168.7$net.1/24" dev "far$net"
    ip link set "near$net" up
    ip netns exec far ip link set "far$net" up
done
ip netns exec far ip link set lo up
truncate -s 96M "$IMAGE"
truncate -s 96M "$OTHER"

mkdir -p /tmp/near/state /mnt/disk
cat >/tmp/near/lunar.toml <<END
[server]
cores = 1
memory = "32M"
driver = "io-uring"
state = "/tmp/near/state"
[volume.own]
kind = "ram"
size = "8M"
[ublk.own]
volume = "own"
END
: >"$LOG"
start_near
try "the daemon serves a disk" eventually logged "ublk own: serves"

fails "without a target, attach says what to do" "no target answers: check the address" "$LUNAR" attach "st:$ADDRESS"
start "$IMAGE" "$OTHER"
fails "a LUN without a volume is refused" "shows no volume at LUN 9: give the LUN" "$LUNAR" attach "st:$ADDRESS#9"
fails "an address that is none is refused" "udp:ADDRESS:PORT" "$LUNAR" attach "st:192.168.70.1"
try "a volume of another Lunar becomes a disk" "$LUNAR" attach "$BOTH" --name data
disk=$(readlink /run/lunar/ublk/data)
name=${disk##*/}
equal "its size" $((96 << 20)) "$(blockdev --getsize64 "$disk")"
equal "its write cache" "write back" "$(cat "/sys/block/$name/queue/write_cache")"
[ "$(cat "/sys/block/$name/queue/discard_max_bytes")" -gt 0 ] && ok "it discards" || bad "it discards"

head -c 4M /dev/urandom >/tmp/random
try "write 4 MiB" dd if=/tmp/random of="$disk" bs=1M oflag=direct conv=fsync status=none
equal "the image of the target has them" "$(sum </tmp/random)" "$(head -c 4M "$IMAGE" | sum)"
try "write zeroes" blkdiscard -z -o 0 -l 1M "$disk"
try "discard" blkdiscard -o 1M -l 1M "$disk"
equal "both read as zeroes" "$(head -c 2M /dev/zero | sum)" "$(read_sum "$disk" count=2)"
equal "the rest is there" "$(tail -c 2M /tmp/random | sum)" "$(read_sum "$disk" skip=2 count=2)"

try "mkfs.ext4" mkfs.ext4 -q -F "$disk"
try "mount" mount "$disk" /mnt/disk
head -c 8M /dev/urandom >/mnt/disk/file
kept=$(sum </mnt/disk/file)
sync
before=$(stat -c %b "$IMAGE")
cp /mnt/disk/file /tmp/kept
rm /mnt/disk/file
sync
try "fstrim" fstrim /mnt/disk
[ "$(stat -c %b "$IMAGE")" -lt $((before - 10000)) ] && ok "the target gets the space back" ||
    bad "the target gets the space back"
cp /tmp/kept /mnt/disk/file
rm -f /tmp/kept
sync

# The target is killed under verified writes, and started again.
load $((1 + KILLS * 2))
for round in $(seq "$KILLS"); do
    nap 1
    kill_target
    nap 1
    start "$IMAGE" "$OTHER"
done
wait $fio
equal "$KILLS kills of the target under verified writes" 0 $? || tail -n 8 /tmp/fio.out
equal "no I/O error" "" "$(dmesg | grep -i 'I/O error')"

# Both links carry data, and each is pulled once under verified writes.
moved=$(bytes_of near1)
load 6
# On a busy machine fio takes some seconds before its first write.
for _ in 1 2 3 4 5 6; do
    nap 1
    [ "$(bytes_of near1)" -le $((moved + 100000)) ] || break
done
[ "$(bytes_of near1)" -gt $((moved + 100000)) ] && ok "the second link carries data" ||
    bad "the second link carries data: $(bytes_of near1) bytes, $moved before"
ip netns exec far ip link set far1 down
nap 3
ip netns exec far ip link set far1 up
nap 3
ip netns exec far ip link set far0 down
wait $fio
equal "verified writes while each link is pulled" 0 $? || tail -n 8 /tmp/fio.out
ip netns exec far ip link set far0 up
equal "still no I/O error" "" "$(dmesg | grep -i 'I/O error')"

# Another volume at the LUN gets no command.
kill_target
unchanged=$(sum <"$OTHER")
start "$OTHER" "$IMAGE"
try "another volume at the LUN is noticed" eventually logged "is another one than the one that was served"
# A commit of the journal makes the copy wait, too.
{ cp /mnt/disk/file /mnt/disk/copy && sync; } &
writer=$!
nap 3
kill -0 $writer 2>/dev/null && ok "writes wait" || bad "writes wait"
tells() { "$LUNAR" status | grep -q "is another one"; }
try "the state of the service says so" eventually tells
kill_target
equal "the other volume is unchanged" "$unchanged" "$(sum <"$OTHER")"
start "$IMAGE" "$OTHER"
wait $writer
equal "the writes have ended" 0 $?

echo 3 >/proc/sys/vm/drop_caches
equal "the file has its data" "$kept" "$(sum </mnt/disk/file)"
equal "and so has its copy" "$kept" "$(sum </mnt/disk/copy)"

# A larger volume.
kill_target
truncate -s 128M "$IMAGE"
start "$IMAGE" "$OTHER"
try "the new size is noticed" eventually logged "has another size"
try "unmount" umount /mnt/disk
try "fsck.ext4" fsck.ext4 -f -n "$disk"
equal "no I/O error at all" "" "$(dmesg | grep -i 'I/O error')"
says "detach says that the volume stays" "lunar volume delete data" "$LUNAR" detach data
try "it is deleted" "$LUNAR" volume delete data
kill "$target"
wait "$target"
equal "the target ends" 0 $?
try "fsck.ext4 of the image" fsck.ext4 -f -n "$IMAGE"
kill "$near"
wait "$near"
equal "the daemon ends" 0 $?
finish
