# A disk of this machine that a process of its own serves (`lunar ublk-server`), from a socket of the daemon: data,
# kills of both processes under load, reservations of other hosts, and an ordinary user as the owner.
. /test/lib.sh
. /test/shared.sh
. /test/own_disk.sh
. /test/settings # DRIVER PROCESSORS KILLS SERVER_KILLS

LUNAR=/test/ublk/lunar
FOLDER=/tmp/service
SOCKET=$FOLDER/data.sock
IMAGE=$FOLDER/disk.img
TARGET=iqn.2026-01.io.lunar.conform:ublk-server
PORTAL=127.0.0.1:3270
LOG=/tmp/daemon.log
SERVER_LOG=/tmp/server.log

# configure SIZE: writes the configuration of the daemon.
configure() {
    cat >$FOLDER/lunar.toml <<END
[server]
cores = 2
memory = "32M"
driver = "$(echo "$DRIVER" | tr _ -)"
state = "$FOLDER/state"
[volume.disk]
kind = "file"
path = "$IMAGE"
size = "$1"
$(one_target "$TARGET" "$PORTAL" '0 = "disk"')
[vhost.data]
target = "main"
socket = "$SOCKET"
mode = "666"
END
}
daemon() {
    "$LUNAR" daemon --config $FOLDER/lunar.toml >>$LOG 2>&1 &
    target=$!
}
kill_daemon() {
    kill -9 "$target"
    wait "$target"
}
said() { grep -q -- "$1" $SERVER_LOG; }
# serve NAME COMMAND...: a case that passes if the command serves a disk, which is in $disk; $server is its process.
serve() {
    local what=$1
    shift
    : >$SERVER_LOG
    "$@" >>$SERVER_LOG 2>&1 &
    server=$!
    if ! eventually said ": serves /dev/ublkb"; then
        cat $SERVER_LOG
        bad "$what"
        return 1
    fi
    [ "$what" = - ] || ok "$what"
    disk=$(sed -n 's/.*: serves \(\/dev\/ublkb[0-9]*\).*/\1/p' $SERVER_LOG | tail -n 1)
    name=${disk##*/}
}
serve_root() {
    serve "$1" "$LUNAR" ublk-server $SOCKET --name data --link /run/disks/data --queues "$PROCESSORS"
}
kill_server() {
    kill -9 "$server"
    wait "$server"
}
# end NAME: a case that passes if the process ends well, and its disk is gone.
end() {
    kill "$server"
    wait "$server"
    equal "$1" 0 $? || cat $SERVER_LOG
    try "the disk is gone" eventually gone
}

if [ ! -e /dev/ublk-control ]; then
    echo "@skip ublk-server: this kernel has no ublk_drv"
    finish
fi
mkdir -p $FOLDER/state /run/disks /mnt/disk
configure 96M

# The disk waits for the daemon.
for round in 1 2; do
    "$LUNAR" ublk-server $SOCKET --name data --link /run/disks/data --queues "$PROCESSORS" >$SERVER_LOG 2>&1 &
    server=$!
    [ $round = 1 ] || break
    try "without the daemon, the process waits and says so" eventually said "Lunar does not listen there"
    kill "$server"
    wait "$server"
    equal "it ends while it waits" 0 $?
done
daemon
try "it serves a disk when the daemon has come" eventually said ": serves /dev/ublkb"
disk=$(sed -n 's/.*: serves \(\/dev\/ublkb[0-9]*\).*/\1/p' $SERVER_LOG | tail -n 1)
name=${disk##*/}
[ -b "$disk" ] || { cat $SERVER_LOG $LOG; finish; }
equal "the link leads to the disk" "$disk" "$(readlink /run/disks/data)"
says "the process is in a sandbox" "^Seccomp:[[:space:]]*2" cat "/proc/$server/status"
disk_properties $((96 << 20)) "$PROCESSORS"
says "the daemon knows it as a host" "iqn.2026-01.io.lunar:vm:data" "$LUNAR" session list

disk_data

# The file system waits while the daemon is dead.
try "mkfs.ext4" mkfs.ext4 -q -F "$disk"
try "mount" mount "$disk" /mnt/disk
head -c 16M /dev/urandom >/mnt/disk/file
kept=$(sum </mnt/disk/file)
sync
kill_daemon
{ echo 3 >/proc/sys/vm/drop_caches; sum </mnt/disk/file >/tmp/sum; } &
reader=$!
nap 1
kill -0 $reader 2>/dev/null && ok "a read waits while the daemon is dead" || bad "a read waits while the daemon is dead"
daemon
wait $reader
equal "the read has ended with the data" "$kept" "$(cat /tmp/sum)"
said "connected again" && ok "the log says so" || bad "the log says so"

# The process does not leave a disk that is in use.
kill "$server"
try "a mounted disk stays, and the log says why" eventually said "is mounted at /mnt/disk: run: umount /mnt/disk"
try "it can be written" cp /mnt/disk/file /mnt/disk/copy

# The process is killed: the disk waits for the next one.
sync
kill_server
test -b "$disk" && ok "the disk outlasts its process" || bad "the disk outlasts its process"
{ echo 3 >/proc/sys/vm/drop_caches; sum </mnt/disk/copy >/tmp/sum; } &
reader=$!
was=$disk
serve_root "the same command takes it over" || finish
equal "it is the same disk" "$was" "$disk"
wait $reader
equal "the data is there" "$kept" "$(cat /tmp/sum)"
try "unmount" umount /mnt/disk
try "fsck.ext4" fsck.ext4 -f -n "$disk"

# background: writes for as long as the kills take, and then reads everything.
background() {
    fio --name=background --filename="$disk" --ioengine=libaio --direct=1 --rw=randwrite --bs=4k --iodepth=8 \
        --size=2M --rate_iops="$1" --verify=crc32c --verify_fatal=1 --randseed=11 --output-format=terse \
        >/tmp/fio.out 2>&1 &
    fio=$!
}
background 60
for round in $(seq "$KILLS"); do
    nap 1
    kill_daemon
    daemon
    eventually "$LUNAR" status
done
load_end "$KILLS kills of the daemon under verified writes"
background 30
for round in $(seq "$SERVER_KILLS"); do
    nap 0.5
    kill_server
    serve_root - || break
done
load_end "$SERVER_KILLS kills of the process under verified writes"
equal "no I/O error" "" "$(dmesg | grep -i 'I/O error')"

iscsi_login
try "register over iSCSI" sg_persist --out --register --param-sark=abc "$other"
try "reserve over iSCSI, write exclusive" sg_persist --out --reserve --param-rk=abc --prout-type=1 "$other"
refuse "a write is refused" write_one
try "a read is not" dd if="$disk" of=/dev/null bs=4k count=1 iflag=direct status=none
try "release over iSCSI" sg_persist --out --release --param-rk=abc --prout-type=1 "$other"
try "write again" write_one

configure 128M
kill -HUP "$target"
resized() { [ "$(blockdev --getsize64 "$disk")" = $((128 << 20)) ] || said "keeps its old size"; }
try "the disk has the new size, or an older kernel keeps the old one" eventually resized
end "the process ends"
[ ! -L /run/disks/data ] && ok "its link is gone" || bad "its link is gone"

# An ordinary user. This machine has no udev, so a loop does the work of its rules.
chmod 666 /dev/ublk-control
own() {
    local node owner
    while :; do
        for node in /dev/ublk[cb][0-9]*; do
            [ "$(stat -c %u "$node" 2>/dev/null)" = 0 ] || continue
            owner=$("$LUNAR" ublk-server --owner "${node#/dev/ublk[cb]}" 2>/dev/null) || continue
            chown "${owner% *}:${owner#* }" "$node"
        done
        nap 0.2
    done
}
own &
owner=$!
USER_1000="setpriv --reuid=1000 --regid=1000 --clear-groups"
# Not a function: its process would be that of a shell.
serve_user() { serve "$1" $USER_1000 "$LUNAR" ublk-server $SOCKET --name own; }
belongs() { [ "$(stat -c %u "$disk")" = 1000 ]; }
serve_user "an ordinary user serves a disk" || finish
said "without privileges" && ok "the log says so" || bad "the log says so"
says "the process has no capabilities" "^CapEff:[[:space:]]*0*$" cat "/proc/$server/status"
try "the disk belongs to the user" eventually belongs
try "the user writes" $USER_1000 dd if=/tmp/random of="$disk" bs=1M oflag=direct status=none
equal "and reads" "$(sum </tmp/random)" "$($USER_1000 dd if="$disk" bs=1M count=4 iflag=direct status=none | sum)"
refuse "another user does not" setpriv --reuid=1001 --regid=1001 --clear-groups dd if="$disk" of=/dev/null bs=4k count=1
kill_daemon
$USER_1000 dd if=/tmp/random of="$disk" bs=1M oflag=direct status=none &
writer=$!
nap 2
daemon
wait $writer
equal "a write waits for a daemon that was killed" 0 $?
equal "its data is there" "$(sum </tmp/random)" "$(head -c 4M $IMAGE | sum)"

# The kernel kills a process without privileges that does not answer for 30 seconds.
hang() {
    eventually iscsi_disk
    kill -STOP "$target"
    dd if=/dev/zero of="$disk" bs=4k count=1 oflag=direct status=none &
    writer=$!
    nap 35
    kill -0 $writer 2>/dev/null && bad "a write fails before the kernel loses patience" ||
        ok "a write fails before the kernel loses patience"
    wait $writer && bad "it fails with an error" || ok "it fails with an error"
    kill -0 "$server" 2>/dev/null && ok "the process lives" || bad "the process lives"
    said "has not answered for 20 s" && ok "the log says why" || bad "the log says why"
    kill -CONT "$target"
    try "the daemon answers again" eventually said "Lunar answers again"
    try "the next write succeeds" eventually write_one
    try "the iSCSI session of the daemon lives" eventually sg_turs "$other"
}
whole_only hang
kill_server
try "the disk of a user ends with its process" eventually gone
serve_user "the same user makes it anew" || finish
end "the process ends"
kill "$owner"
iscsiadm -m node -u >/dev/null 2>&1
kill "$target"
wait "$target"
equal "the daemon ends" 0 $?
finish
