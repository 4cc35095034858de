# The kernel's initiator for SRP over software RoCE. The target runs in the same guest, in a network namespace of its
# own, as an ordinary program with a UDP socket.
. /test/lib.sh
. /test/rdma.sh
. /test/shared.sh
. /test/two_paths.sh
. /test/settings # GUID INITIATOR TARGET PORTAL (iSCSI)

modules_of /test/rdma/modules ib_srp

# unit LUN: the disk of this LUN.
unit() {
    local found
    for found in /sys/class/srp_host/host*/device/target*/*:*:*:"$1"/block/*; do
        [ -b "/dev/${found##*/}" ] && { echo "/dev/${found##*/}"; return 0; }
    done
    return 1
}
# log_in OPTIONS [GUID]
log_in() {
    echo "id_ext=${2:-$GUID},ioc_guid=${2:-$GUID},dest=192.168.77.1:5555,$1" \
        >/sys/class/infiniband_srp/srp-rxe0-1/add_target
}
# connect NAME OPTIONS: logs in; both disks are in $disk and $second.
connect() {
    try "$1" eventually log_in "$2" || { tail "$LOG"; dmesg | tail -n 20; finish; }
    try "the kernel finds the disk" eventually unit 0 || { tail "$LOG"; dmesg | tail -n 20; finish; }
    try "the kernel finds the second disk" eventually unit 1
    disk=$(unit 0)
    second=$(unit 1)
}
gone() { ! unit 0; }
log_out() {
    local each port
    # An open waits until the kernel has looked for partitions: its reads would fail without the path.
    for each in /sys/block/sd*; do blockdev --getsize64 "/dev/${each##*/}" >/dev/null 2>&1; done
    for port in /sys/class/srp_remote_ports/port-*; do echo 1 >"$port/delete"; done
    try "log out" eventually gone
}
no_errors() { equal "$1" "" "$(dmesg | grep -i 'I/O error')"; }

# Without a link, rdma_rxe of Linux 6.12 sends no more management datagrams, also when the link is back: lose all packets.
take_srp() { lose 100; }
give_srp() { lose 0; }
# paths_test: dm-multipath over SRP and, by a second network, over iSCSI.
paths_test() {
    local map
    rmmod ib_srp
    # The commands of a path without connection fail after two seconds, so that they take the other path.
    insmod "$held" reconnect_delay=2 fast_io_fail_tmo=2
    connect "log in before multipath" ch_count=1
    iscsi_login || return
    different "$disk" "$other"
    multipath_start || return
    one_map "$disk" "$other" || return
    without "SRP, no packet arrives" "$disk" take_srp give_srp
    optimized "$other"
    settled "$disk" "$other"
    same_bytes "$disk" "$other"
    multipath_stop
    iscsi_logout
    log_out
    rmmod ib_srp
    insmod "$held"
    dmesg -C
}

# storm_test: many initiators log in at the same time, while another one writes.
STORM=16
storm_test() {
    local each logins
    connect "log in before a storm of logins" ch_count=1
    logins=$(grep -c "has logged in" "$LOG")
    load_start "$disk"
    for each in $(seq -w $STORM); do
        log_in "ch_count=1,initiator_ext=10000000000000$each" 2>/tmp/storm.$each &
        storm[10#$each]=$!
    done
    wait "${storm[@]}"
    equal "$STORM initiators log in at the same time" $STORM $(($(grep -c "has logged in" "$LOG") - logins)) ||
        { cat /tmp/storm.*; tail "$LOG"; dmesg | tail -n 20; }
    load_end "verified writes beside a storm of logins: no error"
    no_errors "no I/O error beside a storm of logins"
    log_out
}

networks
link_to_target lan 192.168.78
insmod "$held"
serve

connect "log in" ch_count=1
says "INQUIRY" "LUNAR" sg_inq "$disk"
says "INQUIRY claims SRP" "SRP" sg_inq -d "$disk"
says "the identification has the identifier of the port" "$GUID" sg_vpd -p di "$disk"
equal "its size" $((64 << 20)) "$(blockdev --getsize64 "$disk")"
equal "LUNs of another group are not shown" "" "$(unit 5)"
load "fio, 4 KiB, 8 deep" --rw=randwrite --bs=4k --iodepth=8 --size=512k
load "fio, 64 KiB, 8 deep" --rw=randwrite --bs=64k --iodepth=8 --size=2M
load "fio, 1 MiB, 4 deep" --rw=write --bs=1M --iodepth=4 --size=4M
load "fio, 512 bytes, 8 deep" --rw=randwrite --bs=512 --iodepth=8 --size=32k
no_errors "no I/O error"
refuse "a read beyond the end is refused" sg_dd if="$disk" of=/dev/null bs=512 skip=$((64 << 11)) count=1 blk_sgio=1

try "mkfs.ext4" mkfs.ext4 -q -F "$second"
mkdir -p /mnt/disk
try "mount" mount "$second" /mnt/disk
head -c 1M /dev/urandom >/mnt/disk/file
kept=$(sum </mnt/disk/file)
try "umount" umount /mnt/disk
try "fsck.ext4" fsck.ext4 -f -n "$second"
try "mount again" mount "$second" /mnt/disk
equal "the file has its contents" "$kept" "$(sum </mnt/disk/file)"
umount /mnt/disk

try "register a key" sg_persist --out --register --param-sark=abc "$disk"
says "the registrant has the identifier of the initiator" "505400fffe123402|50 54 00 ff fe 12 34 02" \
    sg_persist -s "$disk"
try "reserve" sg_persist --out --reserve --param-rk=abc --prout-type=1 "$disk"
try "clear" sg_persist --out --clear --param-rk=abc "$disk"
try "LOGICAL UNIT RESET" sg_reset -d "$(sg_of "$disk")"
dmesg -C

lose 1
load "fio, 4 KiB, 8 deep, one packet of a hundred is lost" --rw=randwrite --bs=4k --iodepth=8 --size=256k
load "fio, 256 KiB, 4 deep, one packet of a hundred is lost" --rw=randwrite --bs=256k --iodepth=4 --size=1M
lose 0
no_errors "no I/O error with losses"
log_out

refuse "another port identifier is refused" log_in ch_count=1 1122334455667788
says "the refusal is logged" "asks for port 0x1122334455667788" cat "$LOG"

network 4200
connect "log in over four channels, MTU 4200" ch_count=4
load "fio, 4 KiB, 8 deep, two jobs over four channels" --rw=randwrite --bs=4k --iodepth=8 --size=256k --numjobs=2 \
    --offset_increment=8M
load "fio, 1 MiB, 4 deep" --rw=write --bs=1M --iodepth=4 --size=4M
no_errors "no I/O error over four channels"
log_out

rmmod ib_srp
insmod "$held" never_register=Y allow_ext_sg=1 indirect_sg_entries=64
connect "log in with indirect descriptors" ch_count=1,cmd_sg_entries=12,allow_ext_sg=1,sg_tablesize=64
load "fio, 256 KiB, 4 deep, tables of descriptors" --rw=randwrite --bs=256k --iodepth=4 --size=2M
load "fio, 16 KiB, 8 deep, indirect descriptors" --rw=randwrite --bs=16k --iodepth=8 --size=512k
no_errors "no I/O error with indirect descriptors"
log_out

whole_only paths_test
whole_only storm_test
connect "log in before a kill" ch_count=1
patient "$disk"
load_start "$disk"
kill -9 "$target"
sleep 1
logins=$(grep -c "has logged in" "$LOG")
logged_in() { [ "$(grep -c "has logged in" "$LOG")" -gt "$logins" ]; }
serve
try "the initiator logs in again, without waiting for the time-out of a command" eventually logged_in
load_end "verified writes over kill -9 of the target: no error"
no_errors "no I/O error after the kill"
log_out
kill "$target"
wait "$target"
equal "the target ends well" 0 $?
finish
