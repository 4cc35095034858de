# Disks of this machine: a file by ublk, by the kernel's loop device and, if it is there, by rublk; and a disk that stores
# nothing, by ublk, by the kernel's null_blk and by rublk.
. /test/lib.sh
. /test/figures.sh
. /test/settings # DRIVER

modules_of "$HERE/modules" null_blk
insmod "$held" nr_devices=1 gb=1 queue_mode=2
mkdir -p /tmp/files
mount -t tmpfs -o size=512M none /tmp/files
for name in lunar loop rublk; do truncate -s 128M "/tmp/files/$name.img"; done
"$LUNAR" serve --driver "$DRIVER" --cores 1 --memory 64 --listen 127.0.0.1:3260 /tmp/files/lunar.img null:1G \
    --ublk file:0 --ublk nothing:1 >>"$LOG" 2>&1 &
serves() { [ "$(grep -c 'of this machine (ublk)' "$LOG")" = 2 ]; }
eventually serves || { cat "$LOG"; bad "two disks"; finish; }
# own NAME: the disk of this name.
own() { sed -n "s/.* disk *$1 is \(\/dev\/ublkb[0-9]*\) of this machine.*/\1/p" "$LOG"; }
loop=$(losetup --find --show /tmp/files/loop.img)
file=(lunar="$(own file)" loop="$loop")
null=(lunar="$(own nothing)" null_blk=/dev/nullb0)
if [ -x "$HERE/rublk" ]; then
    # added ARGUMENT...: another server's disk.
    added() {
        local before
        before=$(ls /dev/ublkb* | sort)
        "$HERE/rublk" add "$@" >>/tmp/rublk.log 2>&1 || return 1
        sleep 1
        comm -13 <(echo "$before") <(ls /dev/ublkb* | sort)
    }
    disk=$(added loop -f /tmp/files/rublk.img -q 1) && file+=(rublk="$disk") || { cat /tmp/rublk.log; bad "rublk serves a file"; }
    disk=$(added null -q 1) && null+=(rublk="$disk") || { cat /tmp/rublk.log; bad "rublk serves nothing"; }
fi
compare "a file as a disk of this machine" "${file[@]}"
compare "a disk that stores nothing" "${null[@]}"
finish
