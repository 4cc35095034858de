# Sourced: cases with a namespace as the kernel's NVMe/TCP host and nvme-cli see it. HOST, PORT and NQN say where it is; the
# disk is in $disk, and the controller in $controller.

# quiet NAME: a case that passes if the kernel has logged no error.
quiet() {
    local output
    # The kernel looks at a new namespace when the host may have detached it already (Invalid Namespace or Format).
    output=$(dmesg | grep -E 'I/O error|timeout|digest error|failed|unexpected|not supported|Invalid' |
        grep -vE 'resume|Identify Descriptors failed \(nsid=[0-9]+, status=0x600b\)')
    equal "no kernel errors, $1" "" "$output"
    dmesg -C
}

load() {
    local name=$1
    shift
    try "$name" fio --name=load --filename="$disk" --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 \
        --randseed=7 --output-format=terse "$@"
}

exists() { test -b "$disk"; }

connect() {
    local name=$1
    shift
    # On a busy machine the guest sends its keep-alives late.
    try "$name" nvme connect -t tcp -a "$HOST" -s "$PORT" -n "$NQN" -i 2 --keep-alive-tmo=30 "$@" || { dmesg | tail -n 20; return 1; }
    disk=/dev/nvme0n1
    eventually exists || { dmesg | tail -n 20; bad "$name: no disk"; return 1; }
    controller=$(basename "$(ls -d /sys/class/nvme/nvme* | head -n 1)")
}

disconnect() {
    try "$1" nvme disconnect -n "$NQN"
    eventually test ! -b /dev/nvme0n1
}

identity() {
    mkdir -p /etc/nvme
    # Not by `nvme gen-hostnqn`: the UUID of the emulated machine is zero, and host identifier 0 is refused.
    id=$(cat /proc/sys/kernel/random/uuid)
    echo "nqn.2014-08.org.nvmexpress:uuid:$id" >/etc/nvme/hostnqn
    echo "$id" >/etc/nvme/hostid
    echo 16777216 >/proc/sys/net/core/rmem_max
    dmesg -C
}

# Queries of administrators.
inquiry() {
    local c=/dev/$controller page
    says "nvme list" "LUNAR VOLUME" nvme list
    says "nvme list-subsys" "$NQN" nvme list-subsys
    says "id-ctrl" "subnqn *: *$NQN" nvme id-ctrl "$c"
    says "id-ns" "nvmcap *: *[1-9]" nvme id-ns "$disk"
    says "ns-descs" "uuid *: *[0-9a-f]" nvme ns-descs "$disk"
    says "ns-descs: EUI-64" "eui64 *: *02" nvme ns-descs "$disk"
    says "list-ns" "0x1" nvme list-ns "$c"
    says "list-ctrl" "." nvme list-ctrl "$c"
    says "smart-log" "temperature" nvme smart-log "$c"
    # An unknown log page adds an entry to the error log and increments the SMART counter.
    refuse "an unknown log page" nvme get-log "$c" --log-id=0x7f --log-len=512
    says "error-log has an entry for it" "sqid[[:space:]]*: *0" nvme error-log "$c" -e 1
    says "smart-log counts the entry" "num_err_log_entries[[:space:]]*: *[1-9]" nvme smart-log "$c"
    says "fw-log" "frs1" nvme fw-log "$c"
    # The command effects-log needs properties that this version of nvme-cli cannot read over fabrics.
    says "log page of effects" "01 00 00 00" nvme get-log "$c" --log-id=5 --log-len=4096
    says "ana-log" "optimized" nvme ana-log "$c"
    says "supported log pages" "Persistent Event" nvme supported-log-pages "$c"
    try "changed-ns-list-log" nvme changed-ns-list-log "$c"
    says "Abort of an unknown command" "result: *(0x)?0*1$" nvme admin-passthru "$c" --opcode=8 --cdw10=0x70001
    try "resv-notif-log" nvme resv-notif-log "$c"
    for page in 1 2 4 5 6 7 0xa 0xb 0xe 0xf 0x16; do
        try "get-feature $page" nvme get-feature "$c" -f "$page"
    done
    try "get-feature 0x81" nvme get-feature "$c" -f 0x81 --data-len=16 --cdw11=1
    for page in 0x82 0x83; do
        try "get-feature $page" nvme get-feature "$disk" -n 1 -f "$page"
    done
    refuse "get-feature 8: no interrupt coalescing over fabrics" nvme get-feature "$c" -f 8
    for select in 1 2 3; do
        try "get-feature, selector $select" nvme get-feature "$c" -f 4 -s $select
    done
    try "set-feature, temperature threshold" nvme set-feature "$c" -f 4 --value=400
    says "get-feature, temperature threshold" "0x0*190" nvme get-feature "$c" -f 4
    says "the kernel reads the write cache setting" "write (back|through)" cat /sys/block/nvme0n1/queue/write_cache
    says "the kernel identifies the namespace by its UUID" "uuid\." cat /sys/block/nvme0n1/wwid
}

# Single commands, on the first blocks.
commands() {
    local block
    block=$(blockdev --getss "$disk")
    head -c $((block * 16)) /dev/urandom >/tmp/random
    head -c $((block * 16)) /dev/zero >/tmp/zeroes
    try "nvme write" nvme write "$disk" -s 0 -c 15 -z $((block * 16)) -d /tmp/random
    try "nvme read" nvme read "$disk" -s 0 -c 15 -z $((block * 16)) -d /tmp/read
    equal "the data read is the data written" "$(sum </tmp/random)" "$(sum </tmp/read)"
    try "nvme compare" nvme compare "$disk" -s 0 -c 15 -z $((block * 16)) -d /tmp/random
    refuse "nvme compare with other data" nvme compare "$disk" -s 1 -c 15 -z $((block * 16)) -d /tmp/random
    try "nvme verify" nvme verify "$disk" -s 0 -c 15
    try "nvme flush" nvme flush "$disk" -n 1
    try "nvme copy" nvme copy "$disk" --sdlba=64 --slbs=0 --blocks=15
    try "read the copy" nvme read "$disk" -s 64 -c 15 -z $((block * 16)) -d /tmp/read
    equal "the copy has the same data" "$(sum </tmp/random)" "$(sum </tmp/read)"
    try "nvme write-uncor" nvme write-uncor "$disk" -s 3 -c 1
    refuse "a read of an uncorrectable block" nvme read "$disk" -s 0 -c 15 -z $((block * 16)) -d /tmp/read
    refuse "a copy of an uncorrectable block" nvme copy "$disk" --sdlba=64 --slbs=0 --blocks=15
    try "nvme write-zeroes" nvme write-zeroes "$disk" -s 0 -c 15
    try "read the zeroes" nvme read "$disk" -s 0 -c 15 -z $((block * 16)) -d /tmp/read
    equal "the blocks are zero" "$(sum </tmp/zeroes)" "$(sum </tmp/read)"
    try "nvme dsm" nvme dsm "$disk" --ad --slbs=64 --blocks=16
    refuse "a read beyond the capacity" nvme read "$disk" -s 99999999999 -c 0 -z "$block" -d /tmp/read
    refuse "an unknown opcode" nvme io-passthru "$disk" --opcode=0x7e --namespace-id=1
    dmesg -C
}

reservations() {
    local key=0x1234
    try "resv-register" nvme resv-register "$disk" -n 1 --nrkey=$key --rrega=0
    try "resv-acquire" nvme resv-acquire "$disk" -n 1 --crkey=$key --rtype=1 --racqa=0
    says "resv-report" "regctl *: *1" nvme resv-report "$disk" -n 1 -e -d 4096
    says "resv-report: write exclusive" "rtype *: *1" nvme resv-report "$disk" -n 1 -e -d 4096
    try "the holder can write" dd if=/dev/zero of="$disk" bs=4k count=1 oflag=direct status=none
    try "resv-acquire, preempt" nvme resv-acquire "$disk" -n 1 --crkey=$key --prkey=$key --rtype=3 --racqa=1
    says "resv-report: exclusive access, registrants only" "rtype *: *[34]" nvme resv-report "$disk" -n 1 -e -d 4096
    try "resv-release, clear" nvme resv-release "$disk" -n 1 --crkey=$key --rrela=1
    says "resv-report: no registrant after clear" "regctl *: *0" nvme resv-report "$disk" -n 1 -e -d 4096
    try "resv-register again" nvme resv-register "$disk" -n 1 --nrkey=$key --rrega=0
    try "resv-acquire again" nvme resv-acquire "$disk" -n 1 --crkey=$key --rtype=1 --racqa=0
    try "resv-release" nvme resv-release "$disk" -n 1 --crkey=$key --rtype=1 --rrela=0
    refuse "resv-register with a wrong key" nvme resv-register "$disk" -n 1 --crkey=0x99 --rrega=1
    try "unregister" nvme resv-register "$disk" -n 1 --crkey=$key --rrega=1
    says "resv-report: no registrant" "regctl *: *0" nvme resv-report "$disk" -n 1 -e -d 4096
    dmesg -C
}

discard() {
    try "blkdiscard" blkdiscard "$disk"
    equal "discarded blocks read as zeroes" "$(head -c 4M /dev/zero | sum)" "$(read_sum "$disk" count=4)"
    try "blkdiscard --zeroout" blkdiscard --zeroout --length 4M "$disk"
}

file_system() {
    local before
    try "mkfs.ext4" mkfs.ext4 -q -F "$disk" || return
    mkdir -p /mnt/disk
    try "mount" mount "$disk" /mnt/disk || return
    head -c 6M /dev/urandom >/mnt/disk/random
    cp -r /test /usr/bin/bash /mnt/disk/
    before=$(cd /mnt/disk && find . -type f -exec sha256sum {} + | sort)
    try "fstrim" fstrim /mnt/disk
    try "umount" umount /mnt/disk
    try "mount again" mount "$disk" /mnt/disk || return
    equal "files are intact" "$before" "$(cd /mnt/disk && find . -type f -exec sha256sum {} + | sort)"
    umount /mnt/disk
    try "fsck.ext4" fsck.ext4 -f -n "$disk"
}

self_tests() {
    local c=/dev/$controller
    try "device-self-test, short" nvme device-self-test "$c" -n 1 -s 1
    try "device-self-test, extended, all" nvme device-self-test "$c" -n 0xffffffff -s 2
    says "self-test-log has the results" "Self Test Code *: *1" nvme self-test-log "$c" --dst-entries=2
    refuse "a self-test of an unknown namespace" nvme device-self-test "$c" -n 99 -s 1
}

sanitized() { nvme sanitize-log "/dev/$controller" | grep -Eq 'SSTAT\) *: *(0x)?0*1( |$)'; }

sanitize() {
    try "nvme sanitize, block erase" nvme sanitize "/dev/$controller" --sanact=2
    eventually sanitized || nvme sanitize-log "/dev/$controller"
    try "sanitize-log: completed" sanitized
    equal "a sanitized namespace reads as zeroes" "$(head -c 4M /dev/zero | sum)" "$(read_sum "$disk" count=4)"
    refuse "crypto erase, which is not supported" nvme sanitize "/dev/$controller" --sanact=4
    dmesg -C
}

# volume_cases: what a host does with a namespace, whatever its store is.
volume_cases() {
    connect "connect over NVMe/TCP" || return
    inquiry
    commands
    reservations
    discard
    load "fio, 4 KiB, 32 deep, over NVMe/TCP" --rw=randwrite --bs=4k --iodepth=32 --size=4M
    load "fio, 256 KiB, 8 deep, over NVMe/TCP" --rw=randwrite --bs=256k --iodepth=8 --size=8M
    file_system
    quiet "over NVMe/TCP"
    try "nvme format" nvme format "$disk" --force
    equal "a formatted namespace reads as zeroes" "$(head -c 4M /dev/zero | sum)" "$(read_sum "$disk" count=4)"
    self_tests
    sanitize
    disconnect "disconnect from NVMe/TCP"
}
