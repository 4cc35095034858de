# Disks over vhost-user (virtio-blk), by Lunar and by another back-end. The processor time is that of the guest.
. /test/lib.sh
. /test/figures.sh
. /test/settings # PEER

there() { test -b /dev/vda && test -b /dev/vdb; }
eventually there || { bad "two disks"; finish; }
compare "virtio disks in a guest, beside $PEER" lunar=/dev/vda "$PEER=/dev/vdb"
finish
