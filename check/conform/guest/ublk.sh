# Disks of this machine, which the program serves with ublk: file systems, discards, reservations of other hosts, kills
# under load, and errors.
. /test/lib.sh
. /test/shared.sh
. /test/own_disk.sh
. /test/settings # DRIVER KILLS PROCESSORS

LUNAR=/test/ublk/lunar
IMAGE=/tmp/disk.img
TARGET=iqn.2026-01.io.lunar.conform:ublk
PORTAL=127.0.0.1:3260
LOG=/tmp/lunar.log

# serve ARGUMENT...: starts the program in the background; $target is its process.
serve() {
    "$LUNAR" serve --driver "$DRIVER" --cores 2 --memory 32 --name "$TARGET" --listen "$PORTAL" "$@" >>"$LOG" 2>&1 &
    target=$!
}
serves() { grep -q 'of this machine (ublk)' "$LOG"; }
# start NAME ARGUMENT...: a case that passes if it serves; the first disk is in $disk.
start() {
    local what=$1
    shift
    : >"$LOG"
    serve "$@"
    if ! eventually serves; then
        cat "$LOG"
        bad "$what"
        return 1
    fi
    [ "$what" = - ] || ok "$what"
    disk=$(sed -n 's/.* is \(\/dev\/ublkb[0-9]*\) of this machine.*/\1/p' "$LOG" | head -n 1)
    name=${disk##*/}
}
# stop NAME: a case that passes if it ends well and its disk is gone.
stop() {
    kill "$target"
    wait "$target"
    equal "$1" 0 $?
    try "the disk is gone" eventually gone
}
logged() { grep -q -- "$1" "$LOG"; }
used() { stat -c %b "$IMAGE"; }

if [ ! -e /dev/ublk-control ]; then
    echo "@skip ublk: this kernel has no ublk_drv"
    finish
fi
truncate -s 128M "$IMAGE"
if [ "$DRIVER" != io_uring ]; then
    refuses "another driver is refused, with words that say what to do" "ublk needs io_uring" "$IMAGE" --ublk data
    finish
fi

start "a disk is served" "$IMAGE" --ublk data || finish
disk_properties $((128 << 20)) "$PROCESSORS"
disk_data

try "mkfs.ext4" mkfs.ext4 -q -F "$disk"
mkdir -p /mnt/disk
try "mount" mount "$disk" /mnt/disk
head -c 32M /dev/urandom >/mnt/disk/file
kept=$(sum </mnt/disk/file)
sync
before=$(used)
cp /mnt/disk/file /tmp/kept
rm /mnt/disk/file
sync
try "fstrim" fstrim /mnt/disk
[ "$(used)" -lt $((before - 40000)) ] && ok "the image gives the space back" || {
    echo "$before blocks before, $(used) afterwards"
    bad "the image gives the space back"
}
cp /tmp/kept /mnt/disk/file
rm -f /tmp/kept
sync

# The file system waits while nothing serves its disk.
kill -9 "$target"
wait "$target"
test -b "$disk" && ok "the disk outlasts a kill" || bad "the disk outlasts a kill"
{ echo 3 >/proc/sys/vm/drop_caches; sum </mnt/disk/file >/tmp/sum; } &
reader=$!
nap 1
kill -0 $reader 2>/dev/null && ok "a read waits" || bad "a read waits"
was=$disk
start "the same command serves it again" "$IMAGE" --ublk data || finish
equal "it is the same disk" "$was" "$disk"
wait $reader
equal "the read has ended with the data" "$kept" "$(cat /tmp/sum)"
try "write after the kill" cp /mnt/disk/file /mnt/disk/copy
try "unmount" umount /mnt/disk
try "fsck.ext4" fsck.ext4 -f -n "$disk"

# Writes for as long as the kills take, and then reads everything.
fio --name=background --filename="$disk" --ioengine=libaio --direct=1 --rw=randwrite --bs=4k --iodepth=8 \
    --size=$((2 + KILLS / 2))M --rate_iops=60 --verify=crc32c --verify_fatal=1 --randseed=11 --output-format=terse \
    >/tmp/fio.out 2>&1 &
fio=$!
for round in $(seq "$KILLS"); do
    nap 0.5
    kill -9 "$target"
    wait "$target"
    start - "$IMAGE" --ublk data || break
done
load_end "$KILLS kills under verified writes"
equal "no I/O error" "" "$(dmesg | grep -i 'I/O error')"

# Another volume must not get the requests that wait.
kill -9 "$target"
wait "$target"
truncate -s 128M /tmp/other.img
refuses "another volume does not take the disk over" "requests wait for another volume" /tmp/other.img --ublk data
mv "$IMAGE" /tmp/moved.img
truncate -s 128M "$IMAGE"
refuses "nor does another one at the same path" "requests wait for another volume" "$IMAGE" --ublk data
mv /tmp/moved.img "$IMAGE"

# A start that fails after the kernel has begun the takeover may be repeated: by the same process, and by another one.
control=/dev/ublkc${name#ublkb}
mv "$control" /dev/hidden
: >"$LOG"
serve "$IMAGE" --ublk data
try "a start without the device node says so" eventually logged "/dev has to be a devtmpfs"
kill -9 "$target"
wait "$target"
mv /dev/hidden "$control"
start "the right volume takes it over" "$IMAGE" --ublk data || finish

iscsi_login
try "register over iSCSI" sg_persist --out --register --param-sark=abc "$other"
try "reserve over iSCSI, write exclusive" sg_persist --out --reserve --param-rk=abc --prout-type=1 "$other"
refuse "a write is refused" write_one
says "as a reservation conflict" "nvalid exchange" sh -c "dd if=/dev/zero of=$disk bs=4k count=1 oflag=direct 2>&1 || :"
try "a read is not" dd if="$disk" of=/dev/null bs=4k count=1 iflag=direct status=none
try "release over iSCSI" sg_persist --out --release --param-rk=abc --prout-type=1 "$other"
try "write again" write_one
iscsiadm -m node -u >/dev/null 2>&1

stop "the program ends"

start "two disks, one of them in memory" "$IMAGE" ram:32M --read-only --ublk data --ublk memory:1 || finish
equal "it is read-only" 1 "$(blockdev --getro "$disk")"
refuse "it cannot be written" write_one
stop "the program ends again"

# A write of a process that was killed has ended before the next process serves its volume: a disk on a disk, of which
# the lower one does not answer.
truncate -s 64M /tmp/lower.img
start "a disk below" /tmp/lower.img --ublk lower || finish
lower=$target
below=$disk
LOG=/tmp/upper.log
PORTAL=127.0.0.1:3272
start "a disk on top of it" "$below" --direct --ublk upper || finish
kill -STOP "$lower"
head -c 32k /dev/urandom >/tmp/top
dd if=/tmp/top of="$disk" bs=4k oflag=direct status=none &
writer=$!
nap 2
kill -9 "$target"
wait "$target"
in_use() { timeout 20 mkfs.ext4 -n -q "$below" 2>&1 | grep -q "in use"; }
try "a killed process holds its device while its writes are in progress" in_use
: >"$LOG"
serve "$below" --direct --ublk upper
nap 3
refuse "the next one does not serve it" serves
kill -CONT "$lower"
try "it does when they have ended" eventually serves
# Not `try`, whose command is not a parent of the writer.
wait $writer
equal "the write has ended" 0 $?
equal "its data is there" "$(sum </tmp/top)" "$(dd if="$disk" bs=4k count=8 iflag=direct status=none | sum)"
stop "the program on top ends"
target=$lower
disk=$below
LOG=/tmp/lunar.log
PORTAL=127.0.0.1:3260
stop "the program below ends"

# The daemon, in its sandbox, with a disk of a chosen number.
disk=/dev/ublkb7
# configure SIZE [SECTION]: writes its configuration.
configure() {
    cat >/tmp/service/lunar.toml <<END
[server]
cores = 2
memory = "32M"
driver = "io-uring"
state = "/tmp/service/state"
[volume.disk]
kind = "file"
path = "/tmp/service/disk.img"
size = "$1"
$(one_target "$TARGET" 127.0.0.1:3270 '0 = "disk"')
$2
END
}
SECTION='[ublk.data]
target = "main"
number = 7'
# start_daemon NAME [WORDS]: a case that passes if it serves the disk, or if its log has these words.
start_daemon() {
    : >"$LOG"
    "$LUNAR" daemon --config /tmp/service/lunar.toml >>"$LOG" 2>&1 &
    target=$!
    if eventually logged "${2:-ublk data: serves $disk}"; then ok "$1"; else cat "$LOG"; bad "$1"; fi
}
has_size() { [ "$(blockdev --getsize64 "$disk")" = "$1" ]; }
mkdir -p /tmp/service/state
configure 64M "$SECTION"
start_daemon "the daemon serves a disk"
says "in its sandbox" "^Seccomp:[[:space:]]*2" cat "/proc/$target/status"
equal "its size" $((64 << 20)) "$(blockdev --getsize64 "$disk")"
try "mkfs.ext4 on it" mkfs.ext4 -q -F "$disk"
try "mount" mount "$disk" /mnt/disk
head -c 8M /dev/urandom >/mnt/disk/file
kept=$(sum </mnt/disk/file)
kill "$target"
wait "$target"
equal "the daemon ends" 0 $?
test -b "$disk" && ok "its disk stays" || bad "its disk stays"
{ sync; echo 3 >/proc/sys/vm/drop_caches; sum </mnt/disk/file >/tmp/sum; } &
reader=$!
start_daemon "it serves the disk again"
wait $reader
equal "the file has its data" "$kept" "$(cat /tmp/sum)"
configure 96M "$SECTION"
kill -HUP "$target"
if logged "the kernel offers .*UPDATE_SIZE"; then
    try "the disk has its new size" eventually has_size $((96 << 20))
else
    try "an older kernel keeps the size, and the log says so" eventually logged "keeps its old size"
fi
try "unmount" umount /mnt/disk
try "fsck.ext4" fsck.ext4 -f -n "$disk"
configure 96M ""
kill -HUP "$target"
try "a disk whose section is removed is gone" eventually gone
configure 96M "$SECTION"
kill -HUP "$target"
try "it comes with its section" eventually test -b "$disk"
try "with the new size" eventually has_size $((96 << 20))
equal "no I/O error with the daemon" "" "$(dmesg | grep 'I/O error' || :)"
try "mount it again" mount "$disk" /mnt/disk
configure 96M ""
refuse "its section is not removed while it is mounted" "$LUNAR" apply
test -b "$disk" && ok "it is still there while it is mounted" || bad "it is still there while it is mounted"
try "its section is removed by force" "$LUNAR" apply --force
try "it is gone while it is mounted" eventually gone
umount /mnt/disk
try "nothing is left of it" eventually [ ! -e "/dev/ublkc7" ]
configure 96M "$SECTION"
kill -HUP "$target"
try "it comes once more" eventually test -b "$disk"
kill "$target"
wait "$target"
equal "the daemon ends again" 0 $?

# The disk that was left has no requests, and must not keep the module.
without_requests() {
    start_daemon "the disk is taken over once more"
    configure 96M ""
    kill -HUP "$target"
    try "it is removed" eventually gone
    kill "$target"
    wait "$target"
}
whole_only without_requests

# Disks by command, while the daemon runs. The first section is there at the start, for the sandbox.
configure 96M "$SECTION"
start_daemon "it comes for commands"
work=/run/lunar/ublk/work
try "a volume becomes a disk by command" "$LUNAR" attach disk --name work
says "a link by its name leads to it" "^/dev/ublkb" readlink "$work"
equal "the size of the disk" $((96 << 20)) "$(blockdev --getsize64 "$work")"
says "it is listed with its link" "$work" "$LUNAR" attach --list
says "the features of the kernel are listed" "USER_RECOVERY, used" "$LUNAR" attach --features
says "it is in the configuration" "ublk.work" cat /tmp/service/lunar.toml
refuse "a second disk of this name is refused" "$LUNAR" attach disk --name work
try "a read-only disk" "$LUNAR" attach disk --name look --read-only
equal "it is read-only" 1 "$(blockdev --getro /run/lunar/ublk/look)"
try "it is removed by command" "$LUNAR" detach look
try "and its link" eventually [ ! -L /run/lunar/ublk/look ]

# The SCSI nexus of the operator is one more host of the volume.
head -c 1024 /dev/urandom >/tmp/part
try "write by a SCSI command" "$LUNAR" scsi disk write10 lba=2048 length=2 --out /tmp/part
equal "the disk has the data" "$(sum </tmp/part)" "$(dd if="$work" bs=1k skip=1024 count=1 iflag=direct status=none | sum)"
try "reserve by a SCSI command" "$LUNAR" scsi disk reserve6
says "a write of the disk is a reservation conflict" "nvalid exchange" \
    sh -c "dd if=/dev/zero of=$work bs=4k count=1 oflag=direct 2>&1 || :"
try "release by a SCSI command" "$LUNAR" scsi disk release6
try "write again" dd if=/dev/zero of="$work" bs=4k count=1 oflag=direct status=none
says "sense data in words" "logical block address out of range" sh -c "$LUNAR scsi disk read10 lba=0x7fffffff length=1 || :"

try "mkfs.ext4 on the link" mkfs.ext4 -q -F "$work"
try "mount the link" mount "$work" /mnt/disk
detach_of() { "$LUNAR" detach "$1" 2>&1 || :; }
says "a mounted disk is not detached" "is mounted at /mnt/disk.*umount /mnt/disk" detach_of work
kick_of() { "$LUNAR" session kick "$1" 2>&1 || :; }
id=ublk-$(readlink -f "$work" | sed 's/.*ublkb//')
says "a mounted disk is not ended as a session" "is mounted at /mnt/disk.*umount /mnt/disk" kick_of "$id"
says "the refusal names the way out" "repeat the command with --force" kick_of "$id"
test -b "$work" && ok "it is there after the refusals" || bad "it is there after the refusals"
kill "$target"
wait "$target"
start_daemon "a restart"
try "serves the disk again" eventually test -b "$work"
try "unmount the link" umount /mnt/disk
try "fsck.ext4" fsck.ext4 -f -n "$work"
try "a disk that nothing uses is ended without force" "$LUNAR" session kick "$id"
try "the link is gone" eventually [ ! -L "$work" ]
try "it is detached" "$LUNAR" detach work
try "its link is gone" eventually [ ! -L "$work" ]
refuse "it is not in the configuration" grep -q ublk.work /tmp/service/lunar.toml
configure 96M ""
kill -HUP "$target"
try "the other disk is removed" eventually gone
kill "$target"
wait "$target"

# A disk whose section was removed while no daemon ran is told, and stays as long as it is in use.
without_section() {
    configure 96M "$SECTION"
    start_daemon "it comes again"
    try "mount it again" mount "$disk" /mnt/disk
    kill -9 "$target"
    wait "$target"
    configure 96M ""
    start_daemon "a disk without a section is told" "ublkb7 was left by a process of Lunar.*lunar session kick ublk-7"
    refuse "a mounted disk is not removed" "$LUNAR" session kick ublk-7
    try "the log says why" eventually logged "ublkb7 is mounted at /mnt/disk"
    test -b "$disk" && ok "it is still there" || bad "it is still there"
    kill "$target"
    wait "$target"
    configure 96M "$SECTION"
    start_daemon "its section serves it again"
    try "unmount it" umount /mnt/disk
    try "fsck.ext4" fsck.ext4 -f -n "$disk"
    kill -9 "$target"
    wait "$target"
    configure 96M ""
    start_daemon "it is told once more" "ublkb7 was left by a process of Lunar"
    try "it is removed when it is asked for" "$LUNAR" session kick ublk-7
    try "it is gone" eventually [ ! -e /dev/ublkc7 ]
    kill "$target"
    wait "$target"
}
whole_only without_section

rmmod ublk_drv
refuses "a missing module is named" "modprobe ublk_drv" "$IMAGE" --ublk data
finish
