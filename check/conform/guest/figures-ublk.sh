# Disks of this machine: a file on tmpfs and one on ext4 by ublk, by the kernel's loop device and, if it is there, by
# rublk; and a disk that stores nothing, by ublk, by the kernel's null_blk and by rublk. The kernel reads files on tmpfs
# for io_uring in threads of its own, and files on ext4, as on other file systems with direct I/O, in the call itself.
. /test/lib.sh
. /test/figures.sh
. /test/settings # DRIVER

modules_of "$HERE/modules" brd
insmod "$held" rd_nr=1 rd_size=$((256 << 10))
mkdir -p /tmp/files /tmp/ext4
mount -t tmpfs -o size=512M none /tmp/files
try "ext4 on a disk in memory" mkfs.ext4 -q -F /dev/ram0
mount -t ext4 /dev/ram0 /tmp/ext4
for name in lunar loop rublk; do
    truncate -s 128M "/tmp/files/$name.img"
    truncate -s 64M "/tmp/ext4/$name-ext4.img"
done
"$LUNAR" serve --driver "$DRIVER" --cores 1 --memory 64 --listen 127.0.0.1:3260 /tmp/files/lunar.img null:1G \
    --ublk file:0 --ublk nothing:1 >>"$LOG" 2>&1 &
# Without the page cache, as the others.
"$LUNAR" serve --driver "$DRIVER" --cores 1 --memory 64 --listen 127.0.0.1:3261 --direct /tmp/ext4/lunar-ext4.img \
    --ublk ext4:0 >>"$LOG" 2>&1 &
serves() { [ "$(grep -c 'of this machine (ublk)' "$LOG")" = 3 ]; }
eventually serves || { cat "$LOG"; bad "three disks"; finish; }
# own NAME: the disk of this name.
own() { sed -n "s/.* disk *$1 is \(\/dev\/ublkb[0-9]*\) of this machine.*/\1/p" "$LOG"; }
file=(lunar="$(own file)" loop="$(losetup --find --show /tmp/files/loop.img)")
ext4=(lunar="$(own ext4)" loop="$(losetup --direct-io=on --find --show /tmp/ext4/loop-ext4.img)")
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
    disk=$(added loop -f /tmp/ext4/rublk-ext4.img -q 1) && ext4+=(rublk="$disk") || { cat /tmp/rublk.log; bad "rublk serves ext4"; }
    disk=$(added null -q 1) && null+=(rublk="$disk") || { cat /tmp/rublk.log; bad "rublk serves nothing"; }
fi
compare "a file as a disk of this machine" "${file[@]}"
compare "a file on ext4 as a disk of this machine" "${ext4[@]}"
compare "a disk that stores nothing" "${null[@]}"
finish
