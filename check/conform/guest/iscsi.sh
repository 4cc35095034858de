# The kernel's iSCSI initiator with open-iscsi, sg3_utils, file systems and fio.
. /test/lib.sh
. /test/initiator.sh
. /test/protected.sh
. /test/tape.sh
. /test/settings # PORTAL TARGET LUN, and perhaps FULL, PORTAL6, READ_ONLY, LARGE_BLOCKS, PROTECTED, DISC, TAPE, RESTART, ADVERTISED, CHAP

node() { iscsiadm -m node -T "$TARGET" -p "${portal:=$PORTAL}" "$@"; }

# log_in NAME [LUN]: sets $disk.
log_in() {
    try "$1" node --login || return 1
    eventually disk_of "${2:-$LUN}" || { iscsiadm -m session -P 3; bad "$1: no disk"; return 1; }
    disk=$(disk_of "${2:-$LUN}")
    eventually blockdev --getsize64 "$disk"
}

log_out() { try "$1" node --logout; }

discovery() {
    try "discovery" iscsiadm -m discovery -t sendtargets -p "$PORTAL" || finish
    says "discovery reports the target" "$TARGET" iscsiadm -m node
    if [ -n "${ADVERTISED:-}" ]; then
        says "discovery reports the advertised address" "^$PORTAL,1 $TARGET" iscsiadm -m node
    fi
    # A target without an advertised address reports one that the guest cannot reach: make the record by hand.
    iscsiadm -m node -o delete >/dev/null 2>&1
    iscsiadm -m node -o new -T "$TARGET" -p "$PORTAL" >/dev/null
}

session() {
    says "session is logged in" "iSCSI Session State: LOGGED_IN" iscsiadm -m session -P 3
    says "negotiated: burst" "MaxBurstLength: [1-9]" iscsiadm -m session -P 2
    says "negotiated: immediate data" "ImmediateData: Yes" iscsiadm -m session -P 2
    says "lsscsi" "disk" lsscsi -s
    says "transport is iSCSI" "${TARGET}" lsscsi -t
}

# Queries of administrators.
inquiry() {
    local page pages
    says "sg_inq" "Product identification: *[^ ]" sg_inq "$disk"
    pages=$(sg_vpd --raw -p 0x00 "$disk" | od -An -v -tx1 -j4)
    [ -n "$pages" ] || bad "sg_vpd: list of supported pages"
    for page in $pages; do
        try "sg_vpd page ${page}h" sg_vpd -p "0x$page" "$disk"
    done
    says "sg_vpd: designators" "NAA|EUI-64|T10" sg_vpd -p di "$disk"
    says "sg_readcap" "block length" sg_readcap --16 "$disk"
    says "sg_luns" "Lun list length" sg_luns "$disk"
    says "sg_opcodes" "Read\(16\)|READ\(16\)" sg_opcodes -n "$disk"
    try "sg_turs" sg_turs -n 20 "$disk"
    try "sg_requests" sg_requests "$disk"
    says "sg_modes: caching page" "Caching" sg_modes -a "$disk"
    says "the kernel reads the write cache setting" "write (back|through)" cat "/sys/block/${disk##*/}/queue/write_cache"
}

# offers NAME OPCODE[,ACTION]: whether the target reports that it supports a command; otherwise its case is skipped.
offers() {
    sg_opcodes --opcode="$2" "$disk" 2>&1 | grep -qF "supported [" && return 0
    echo "@skip $1: the target does not support this command"
    return 1
}

# Single commands, on the first MiB.
commands() {
    local block
    block=$(blockdev --getss "$disk")
    head -c $((block * 64)) /dev/urandom >/tmp/random
    try "write 64 blocks" dd if=/tmp/random of="$disk" bs=$((block * 64)) oflag=direct status=none
    equal "read 64 blocks" "$(sum </tmp/random)" "$(dd if="$disk" bs=$((block * 64)) count=1 iflag=direct status=none | sum)"
    try "sg_verify" sg_verify --lba=0 --count=64 "$disk"
    try "sg_verify with data" sg_verify --16 --lba=0 --ndo=$((block * 64)) --count=64 --in=/tmp/random "$disk"
    refuse "sg_verify with other data" sg_verify --16 --lba=1 --ndo=$((block * 64)) --count=64 --in=/tmp/random "$disk"
    try "sg_sync" sg_sync "$disk"
    try "sg_write_same zeroes" sg_write_same --16 --lba=8 --num=8 --xferlen="$block" --in=/dev/zero "$disk"
    equal "the blocks are zero" "$(head -c $((block * 8)) /dev/zero | sum)" \
        "$(dd if="$disk" bs="$block" skip=8 count=8 iflag=direct status=none | sum)"
    if offers "COMPARE AND WRITE" 0x89; then
        { head -c "$block" /tmp/random; head -c "$block" /dev/zero; } >/tmp/compare
        try "sg_compare_and_write" sg_compare_and_write --lba=0 --num=1 --xferlen=$((block * 2)) --in=/tmp/compare "$disk"
        refuse "sg_compare_and_write, miscompare" \
            sg_compare_and_write --lba=0 --num=1 --xferlen=$((block * 2)) --in=/tmp/compare "$disk"
    fi
    try "sg_unmap" sg_unmap --force --lba=16 --num=16 "$disk"
    offers "GET LBA STATUS" 0x9e,0x12 && try "sg_get_lba_status" sg_get_lba_status --lba=0 "$disk"
    try "sg_dd" sg_dd if=/tmp/random of="$disk" bs="$block" count=64 oflag=sgio
    equal "the data of sg_dd is read back" "$(sum </tmp/random)" "$(dd if="$disk" bs=$((block * 64)) count=1 iflag=direct status=none | sum)"
    try "logical unit reset" sg_reset --device "$disk"
    try "target reset" sg_reset --target "$disk"
    try "sg_turs after the resets" sg_turs -n 5 "$disk"
    equal "the data is unchanged after the resets" "$(sum </tmp/random)" \
        "$(dd if="$disk" bs=$((block * 64)) count=1 iflag=direct status=none | sum)"
}

# read_back COUNT: the checksum of the first blocks of the disk.
read_back() { dd if="$disk" bs="$block" count="$1" iflag=direct status=none | sum; }

# Commands of administrators and of monitoring. At the end the disk is empty.
maintenance() {
    local block page
    block=$(blockdev --getss "$disk")
    says "sg_logs" "nformational [Ee]xceptions" sg_logs "$disk"
    for page in 2 3 5 0xc 0xd 0xf 0x19 0x2f; do
        try "sg_logs page $page" sg_logs --page="$page" "$disk"
    done
    says "sg_logs: bytes read" "bytes processed = [1-9]" sg_logs --page=3 "$disk"
    says "sg_logs: space" "Used LBA mapping .*count: [0-9]" sg_logs --page=0xc "$disk"
    says "sg_modes: thresholds" "rovisioning" sg_modes --page=0x1c,2 "$disk"
    try "sg_logs --reset" sg_logs --reset "$disk"
    try "sg_test_rwbuf" sg_test_rwbuf --size=4096 --times=3 "$disk"
    head -c 512 /tmp/random >/tmp/echo
    try "sg_write_buffer, echo" sg_write_buffer --mode=echo --in=/tmp/echo --length=512 "$disk"
    # sg_read_buffer does not print the data in this mode.
    sg_raw --request=512 --outfile=/tmp/echoed "$disk" 3c 0a 00 00 00 00 00 02 00 00
    equal "READ BUFFER, echo" "$(sum </tmp/echo)" "$(sum </tmp/echoed)"
    says "READ BUFFER, echo descriptor" "01 00 10 00" sg_raw --request=4 "$disk" 3c 0b 00 00 00 00 00 00 04 00
    try "sg_prevent" sg_prevent --prevent=1 "$disk"
    try "sg_prevent --allow" sg_prevent --allow "$disk"
    says "sg_reassign --grown: no defects" "0" sg_reassign --grown "$disk"
    try "sg_write_verify compares" sg_write_verify --16 --lba=0 --num=8 --bytchk=1 --in=/tmp/random "$disk"
    head -c $((block * 8)) /dev/zero >/tmp/zeroes
    if offers "ORWRITE" 0x8b; then
        try "sg_write_x --or" sg_write_x --or --16 --lba=0 --num=8 --in=/tmp/zeroes "$disk"
        equal "ORWRITE of zeroes changes nothing" "$(head -c $((block * 8)) /tmp/random | sum)" "$(read_back 8)"
    fi
    offers "WRITE ATOMIC" 0x9c && try "sg_write_x --atomic" sg_write_x --atomic=0 --16 --lba=0 --num=8 --in=/tmp/zeroes "$disk"
    try "write before sg_format" dd if=/tmp/random of="$disk" bs="$block" count=8 oflag=direct status=none
    try "sg_format" sg_format --format --quick --wait "$disk"
    equal "a formatted disk reads as zeroes" "$(sum </tmp/zeroes)" "$(read_back 8)"
    try "write before sg_sanitize" dd if=/tmp/random of="$disk" bs="$block" count=8 oflag=direct status=none
    offers "SANITIZE" 0x48,2 && try "sg_sanitize --block" sg_sanitize --block --quick --wait "$disk"
    equal "a sanitized disk reads as zeroes" "$(sum </tmp/zeroes)" "$(read_back 8)"
    says "sg_get_lba_status: a sanitized disk is deallocated" "deallocated|unmapped" sg_get_lba_status --lba=0 "$disk"
    try "sg_sanitize --overwrite" sg_sanitize --overwrite --count=1 --pattern=/tmp/echo --ipl=512 --quick --wait "$disk"
    equal "the blocks have the overwrite pattern" "$(sum </tmp/echo)" "$(dd if="$disk" bs="$block" count=1 iflag=direct status=none | head -c 512 | sum)"
}

discard() {
    [ "$(cat "/sys/block/${disk##*/}/queue/discard_max_bytes")" != 0 ] || { bad "the kernel finds no support for discard"; return; }
    try "blkdiscard" blkdiscard "$disk"
    equal "discarded blocks read as zeroes" "$(head -c 4M /dev/zero | sum)" "$(read_sum "$disk" count=4)"
    head -c 4M /dev/urandom | dd of="$disk" bs=1M oflag=direct iflag=fullblock status=none
    try "blkdiscard --zeroout" blkdiscard --zeroout --length 4M "$disk"
    equal "zeroed blocks read as zeroes" "$(head -c 4M /dev/zero | sum)" "$(read_sum "$disk" count=4)"
}

# load NAME FIO-ARGUMENT...: random writes, which fio reads back and verifies.
load() {
    local name=$1
    shift
    try "$name" fio --name=load --filename="$disk" --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 \
        --randseed=7 --output-format=terse "$@"
}

# file_system KIND PARTITION MKFS-COMMAND...
file_system() {
    local kind=$1 on=$2 before
    shift 2
    try "mkfs.$kind" "$@" "$on" || return
    mkdir -p /mnt/disk
    try "mount $kind" mount "$on" /mnt/disk || return
    head -c 6M /dev/urandom >/mnt/disk/random
    cp -r /test /usr/bin/bash /mnt/disk/
    before=$(cd /mnt/disk && find . -type f -exec sha256sum {} + | sort)
    try "fstrim $kind" fstrim /mnt/disk
    try "umount $kind" umount /mnt/disk
    try "mount $kind again" mount "$on" /mnt/disk || return
    equal "files on $kind" "$before" "$(cd /mnt/disk && find . -type f -exec sha256sum {} + | sort)"
    umount /mnt/disk
}

partition() {
    try "sfdisk" sfdisk --quiet "$disk" <<<"label: gpt
size=200MiB
"
    eventually test -b "${disk}1" || { bad "the kernel finds no partition"; return 1; }
}

# other_keys NAME PATTERN KEY=VALUE...: a login with other keys, verified writes, and logout.
other_keys() {
    local name=$1 wanted=$2 key
    shift 2
    for key in "$@"; do
        node -o update -n "${key%%=*}" -v "${key#*=}"
    done
    log_in "login: $name" || return
    says "negotiated: $name" "$wanted" iscsiadm -m session -P 2
    load "verified writes: $name" --rw=randwrite --bsrange=4k-1m --blockalign=4k --iodepth=8 --size=8M --offset=300M
    log_out "logout: $name"
}

main() {
    daemon
    discovery
    log_in "login" || finish
    session
    full_only inquiry
    full_only commands
    full_only maintenance
    discard
    load "fio, 4 KiB, 32 deep" --rw=randwrite --bs=4k --iodepth=32 --size=4M
    echo 4096 >"/sys/block/${disk##*/}/queue/max_sectors_kb" 2>/dev/null
    load "fio, 1 MiB, 8 deep" --rw=randwrite --bs=1M --iodepth=8 --size=16M
    partition && file_system ext4 "${disk}1" mkfs.ext4 -q -F && try "fsck.ext4" fsck.ext4 -f -n "${disk}1"
    before=$(read_sum "$disk" count=16)
    quiet "after reading what was written"
    log_out "logout"
    log_in "login again" || finish
    equal "the data is still there" "$before" "$(read_sum "$disk" count=16)"
    log_out "logout again"
    other_keys "digests" "HeaderDigest: CRC32C" \
        "node.conn[0].iscsi.HeaderDigest=CRC32C" "node.conn[0].iscsi.DataDigest=CRC32C"
    other_keys "R2T for all data" "ImmediateData: No" \
        "node.session.iscsi.InitialR2T=Yes" "node.session.iscsi.ImmediateData=No"
    other_keys "small segments" "FirstBurstLength: 8192" \
        "node.session.iscsi.ImmediateData=Yes" "node.session.iscsi.FirstBurstLength=8192" \
        "node.session.iscsi.MaxBurstLength=16384" "node.conn[0].iscsi.MaxRecvDataSegmentLength=4096"
}

# quiet NAME: a case that passes if the kernel has logged no timeout and no connection error.
quiet() {
    local output
    output=$(dmesg | grep -E 'conn error|I/O error|timed out|timing out|ping timeout|aborted|recovery|offline')
    [ -z "$output" ] || printf '%s\n' "$output" | tail -n 12
    equal "no kernel errors, $1" "" "$output"
    dmesg -C
}

# other_portal ADDRESS:PORT TARGET: selects the target of later cases.
other_portal() {
    PORTAL=$1 portal=$1 TARGET=$2
    iscsiadm -m node -o new -T "$TARGET" -p "$PORTAL" >/dev/null
}

if [ -n "${ONLY_RESTART:-}" ]; then daemon; discovery; else main; fi

if [ -n "${PORTAL6:-}" ]; then
    other_portal "$PORTAL6" "$TARGET"
    if log_in "login over IPv6"; then
        try "read over IPv6" dd if="$disk" of=/dev/null bs=1M count=8 iflag=direct
        log_out "logout over IPv6"
    fi
fi

if [ -n "${RAM_LUN:-}" ] && log_in "login for the second volume" "$RAM_LUN"; then
    load "fio on the second volume" --rw=randwrite --bs=4k --iodepth=16 --size=4M
    # Some of the modules that it needs may be there.
    for module in /test/xfs/*; do insmod "$module" 2>/dev/null; done
    file_system xfs "$disk" mkfs.xfs -q -f
    log_out "logout from the second volume"
fi

quiet "after all kinds of sessions"

# The test program kills and restarts the target while fio writes: the initiator's recovery must complete all commands.
if [ -n "${RESTART:-}" ] && log_in "login before the restart"; then
    restart_in 2
    load "fio goes on over a restart of the target" --rw=randwrite --bs=4k --iodepth=8 --size=2M --rate_iops=50 \
        --offset=300M
    wait
    log_out "logout after the restart"
    dmesg -C
fi

if [ -n "${READ_ONLY:-}" ]; then
    other_portal "$READ_ONLY" "$READ_ONLY_TARGET"
    if log_in "login, read-only volume"; then
        equal "the kernel sees write protection" 1 "$(blockdev --getro "$disk")"
        try "reading a read-only volume" dd if="$disk" of=/dev/null bs=1M count=4 iflag=direct
        refuse "writing a read-only volume" dd if=/dev/zero of="$disk" bs=1M count=1 oflag=direct
        blockdev --setrw "$disk" 2>/dev/null
        refuse "writing a read-only volume with sg_dd" sg_dd if=/dev/zero of="$disk" bs=512 count=8 oflag=sgio
        log_out "logout, read-only volume"
    fi
fi

if [ -n "${LARGE_BLOCKS:-}" ]; then
    other_portal "$LARGE_BLOCKS" "$LARGE_BLOCKS_TARGET"
    if log_in "login, 4096-byte blocks"; then
        equal "blocks have 4096 bytes" 4096 "$(blockdev --getss "$disk")"
        load "fio, 4096-byte blocks" --rw=randwrite --bsrange=4k-64k --blockalign=4k --iodepth=16 --size=6M
        file_system ext4 "$disk" mkfs.ext4 -q -F
        log_out "logout, 4096-byte blocks"
    fi
fi

if [ -n "${PROTECTED:-}" ]; then
    other_portal "$PROTECTED" "$PROTECTED_TARGET"
    if log_in "login, protected volume"; then
        protected_disk
        log_out "logout, protected volume"
    fi
fi

if [ -n "${TAPE:-}" ]; then
    other_portal "$TAPE" "$TAPE_TARGET"
    if try "login, tape drive" node --login; then
        tape_drive
        log_out "logout, tape drive"
    fi
fi

# chap_node KEY=VALUE...: sets the node's CHAP parameters.
chap_node() {
    local key
    for key in "$@"; do
        node -o update -n "node.session.auth.${key%%=*}" -v "${key#*=}" >/dev/null
    done
}

# chap_discovery USER SECRET
chap_discovery() {
    local key
    for key in authmethod=CHAP "username=$1" "password=$2"; do
        setting "discovery.sendtargets.auth.${key%%=*}" "${key#*=}"
    done
    iscsiadm -m discoverydb -t sendtargets -p "$CHAP" -o delete >/dev/null 2>&1
    iscsiadm -m discovery -t sendtargets -p "$CHAP"
}

# A target that requires mutual CHAP: logins with each algorithm, and with wrong secrets of either side.
chap_logins() {
    local algorithm
    refuse "discovery without CHAP" iscsiadm -m discovery -t sendtargets -p "$CHAP"
    refuse "discovery with a wrong secret" chap_discovery "$DISCOVERY_USER" "$CHAP_SECRET"
    says "discovery with the right secret" "$CHAP_TARGET" chap_discovery "$DISCOVERY_USER" "$DISCOVERY_SECRET"
    iscsiadm -m node -o delete >/dev/null 2>&1
    other_portal "$CHAP" "$CHAP_TARGET"
    refuse "login without CHAP" node --login
    chap_node authmethod=CHAP "username=$CHAP_USER" "password=$CHAP_SECRET" \
        "username_in=$MUTUAL_USER" "password_in=$MUTUAL_SECRET"
    for algorithm in MD5 SHA1 SHA256 SHA3-256; do
        chap_node "chap_algs=$algorithm"
        log_in "login with mutual CHAP, $algorithm" 0 || continue
        try "read after mutual CHAP, $algorithm" dd if="$disk" of=/dev/null bs=1M count=1 iflag=direct
        log_out "logout, $algorithm"
    done
    chap_node "chap_algs=SHA3-256,SHA256,SHA1,MD5" "password_in=$CHAP_SECRET-other"
    refuse "login to a target with another mutual secret" node --login
    chap_node "password_in=$MUTUAL_SECRET" "password=$MUTUAL_SECRET-other"
    refuse "login with a wrong secret" node --login
}


# read_disc NAME: mounts the disc in $disk and compares its file.
read_disc() {
    try "mount, $1" mount -t iso9660 -o ro "$disk" /mnt/disk || return
    equal "the file on the disc, $1" "$DISC_SUM" "$(sum </mnt/disk/random)"
}

# Removable media: a CD at LUN 0, a disk at LUN 1.
if [ -n "${DISC:-}" ]; then
    other_portal "$DISC" "$DISC_TARGET"
    mkdir -p /mnt/disk
    if log_in "login, CD" 0; then
        says "the kernel finds a CD drive" "^\[.*cd/dvd.*/dev/sr" lsscsi
        equal "the block size of a disc is 2048 bytes" 2048 "$(blockdev --getss "$disk")"
        says "sg_get_config: profile" "CD-ROM" sg_get_config "$disk"
        says "sg_modes: capabilities" "apabilities" sg_modes --page=0x2a "$disk"
        read_disc "before eject"
        refuse "ejecting a disc that is mounted" sg_start --eject "$disk"
        try "umount disc" umount /mnt/disk
        try "eject" eject "$disk"
        # Not by a read, because the kernel would load the disc.
        refuse "sg_turs without medium" sg_turs "$disk"
        try "load" eject --trayclose "$disk"
        eventually blockdev --getsize64 "$disk"
        read_disc "after load" && try "umount disc again" umount /mnt/disk
        log_out "logout, CD"
    fi
    if log_in "login, removable disk" 1; then
        equal "the kernel finds a removable disk" 1 "$(cat "/sys/block/${disk##*/}/removable")"
        try "mkfs on a removable disk" mkfs.ext4 -q -F "$disk"
        before=$(read_sum "$disk" count=16)
        generic=$(ls "/sys/block/${disk##*/}/device/scsi_generic")
        # The kernel prevents the removal while the block device is open; this eject allows it first.
        try "eject of a disk" eject --scsi "$disk"
        refuse "reading an ejected disk" dd if="$disk" of=/dev/null bs=1M count=1 iflag=direct
        try "load of a disk" sg_start --load "/dev/$generic"
        eventually blockdev --rereadpt "$disk"
        equal "the data is unchanged after eject and load" "$before" "$(read_sum "$disk" count=16)"
        try "fsck after eject and load" fsck.ext4 -f -n "$disk"
        log_out "logout, removable disk"
    fi
    # Discard the kernel's errors about the missing medium.
    dmesg -C
fi
quiet "at the end"

# After the check of the kernel's log, which has errors for refused logins.
if [ -n "${CHAP:-}" ]; then chap_logins; fi
finish
