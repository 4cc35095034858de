# The kernel's iSCSI initiator over software RoCE, with open-iscsi. The target runs in the same guest.
. /test/lib.sh
. /test/rdma.sh
. /test/initiator.sh
. /test/suite.sh
. /test/settings # TARGET SECRET_TARGET PORTAL CHAP_USER CHAP_SECRET NQN

modules_of /test/rdma/modules ib_iser
dmesg -C

node() { iscsiadm -m node -T "${target_name:-$TARGET}" -p "$PORTAL" "$@"; }
quit() {
    tail "$LOG"
    dmesg | tail -n 20
    finish
}
# find_disks NAME: waits for the disk of LUN 0, which is then in $disk.
find_disks() {
    try "$1" eventually disk_of 0 || quit
    disk=$(disk_of 0)
    eventually blockdev --getsize64 "$disk"
}
log_in() {
    try "$1" node -I iser --login || quit
    find_disks "$1: the kernel finds the disk"
}
gone() { ! disk_of 0 >/dev/null; }
log_out() {
    try "$1" node --logout
    try "$1: the disk is gone" eventually gone
    # ib_iser reports an error of the connection if the target, which ends it after the logout, is faster.
    dmesg -C
}
no_errors() { equal "$1" "" "$(dmesg | grep -iE 'I/O error|conn error|iser.*(fail|error|bogus)')"; dmesg -C; }

networks
chmod 600 /tmp/lunar.toml
insmod "$held"
daemon 120
serve
dmesg -C

# Without other initiators the interface record `iser` is that of open-iscsi.
discover() { iscsiadm -m discovery -t sendtargets -p "$PORTAL" -I iser; }
try "discovery over RDMA" eventually discover || quit
says "discovery reports the target" "$PORTAL,1 $TARGET" iscsiadm -m node
iscsiadm -m node -o delete >/dev/null 2>&1
says "discovery over TCP reports the same portal" "$PORTAL,1 $TARGET" iscsiadm -m discovery -t sendtargets -p "$PORTAL"
iscsiadm -m node -o delete >/dev/null 2>&1
discover >/dev/null

log_in "login"
says "the transport is iSER" "iser: \[" iscsiadm -m session
says "negotiated: immediate data" "ImmediateData: Yes" iscsiadm -m session -P 2
says "negotiated: data is requested" "InitialR2T: Yes" iscsiadm -m session -P 2
says "the session names the transport" '"protocol": *"iser"' "$LUNAR" session list --json --socket /tmp/lunar.sock
says "INQUIRY" "LUNAR" sg_inq "$disk"
says "the identification is that of iSCSI" "$TARGET" sg_vpd -p di "$disk"
equal "its size" $((64 << 20)) "$(blockdev --getsize64 "$disk")"
load "fio, 4 KiB, 8 deep" --rw=randwrite --bs=4k --iodepth=8 --size=512k
load "fio, 64 KiB, 8 deep" --rw=randwrite --bs=64k --iodepth=8 --size=2M
load "fio, 1 MiB, 4 deep" --rw=write --bs=1M --iodepth=4 --size=4M
load "fio, 512 bytes, 8 deep" --rw=randwrite --bs=512 --iodepth=8 --size=32k
no_errors "no I/O error"
refuse "a read beyond the end is refused" sg_dd if="$disk" of=/dev/null bs=512 skip=$((64 << 11)) count=1 blk_sgio=1
try "a reset of the logical unit" sg_reset --device "$disk"
load "fio, 16 KiB, 8 deep, after a reset" --rw=randwrite --bs=16k --iodepth=8 --size=512k
dmesg -C

second=$(disk_of 1)
try "mkfs.ext4" mkfs.ext4 -q -F "$second"
mkdir -p /mnt/disk
try "mount" mount "$second" /mnt/disk
head -c 1M /dev/urandom >/mnt/disk/file
kept=$(sum </mnt/disk/file)
try "umount" umount /mnt/disk
try "mount again" mount "$second" /mnt/disk
equal "the file has its contents" "$kept" "$(sum </mnt/disk/file)"
umount /mnt/disk

lose 1
load "fio, 4 KiB, 8 deep, one packet of a hundred is lost" --rw=randwrite --bs=4k --iodepth=8 --size=256k
load "fio, 256 KiB, 4 deep, one packet of a hundred is lost" --rw=randwrite --bs=256k --iodepth=4 --size=1M
lose 0
# A queue pair of rdma_rxe that repeats packets may fail without a word to ib_iser, which then notices it by its pings:
# the connection is made again.
equal "no I/O error with losses" "" "$(dmesg | grep -i 'I/O error')"
dmesg -C
log_out "logout"

target_name=$SECRET_TARGET
refuse "login without CHAP" node -I iser --login
chap() { node -o update -n "node.session.auth.$1" -v "$2" >/dev/null; }
chap authmethod CHAP
chap username "$CHAP_USER"
chap password "$CHAP_SECRET-other"
refuse "login with a wrong secret" node -I iser --login
says "the refusal names the transport" '"protocol": *"iser"' "$LUNAR" explain refusal --json --socket /tmp/lunar.sock
chap password "$CHAP_SECRET"
log_in "login with CHAP"
try "read after CHAP" dd if="$disk" of=/dev/null bs=1M count=1 iflag=direct
log_out "logout after CHAP"
target_name=$TARGET

# Those that send many commands take minutes of emulation.
suites="SCSI.Inquiry SCSI.ReadCapacity16 SCSI.ProutReserve"
[ -z "${LONG:-}" ] || suites=$(all_suites)
suite_test "$PORTAL/$TARGET/2" $suites

network 4200
log_in "login with MTU 4200"
load "fio, 4 KiB, 8 deep, two jobs" --rw=randwrite --bs=4k --iodepth=8 --size=256k --numjobs=2 --offset_increment=8M
load "fio, 1 MiB, 4 deep, MTU 4200" --rw=write --bs=1M --iodepth=4 --size=4M
no_errors "no I/O error with MTU 4200"

# NVMe over RDMA at the same address.
mkdir -p /etc/nvme
id=$(cat /proc/sys/kernel/random/uuid)
echo "nqn.2014-08.org.nvmexpress:uuid:$id" >/etc/nvme/hostnqn
echo "$id" >/etc/nvme/hostid
namespace() { grep -lx 1 /sys/block/nvme*/nsid 2>/dev/null | sed -n 's|^/sys/block/\(nvme[0-9]*n[0-9]*\)/nsid$|/dev/\1|p' | head -n 1; }
has_namespace() { [ -b "$(namespace)" ]; }
start() { dd if="$1" bs=1M count=4 iflag=direct status=none | sum; }
try "an NVMe host connects at the same address" nvme connect -t rdma -a "${PORTAL%:*}" -s 4420 -n "$NQN" -i 1
try "the kernel finds the namespace" eventually has_namespace
equal "both read the same volume" "$(start "$disk")" "$(start "$(namespace)")"
load "fio, 16 KiB, 8 deep, beside an NVMe host" --rw=randwrite --bs=16k --iodepth=8 --size=512k
equal "both read what was written" "$(start "$disk")" "$(start "$(namespace)")"
try "the NVMe host disconnects" nvme disconnect -n "$NQN"
no_errors "no I/O error beside an NVMe host"

logins=$(grep -c "login accepted" "$LOG")
connected() { [ "$(grep -c "login accepted" "$LOG")" -gt "$logins" ]; }
patient "$disk"
load_start "$disk"
kill -9 "$target"
sleep 1
serve
try "the initiator logs in again, without waiting for the time-out of a command" eventually connected
load_end "verified writes over kill -9 of the target: no error"
log_out "logout after a kill"
kill "$target"
wait "$target"
equal "the target ends well" 0 $?
finish
