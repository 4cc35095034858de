# SCSI devices of this machine, which the program shares among two initiators: a disk, a tape drive and a CD drive of
# the module scsi_debug. Reservations and unit attentions case by case; a device that vanishes and comes back.
. /test/lib.sh
. /test/initiator.sh
. /test/settings # DRIVER REPLUGS

HERE=/test/device
LUNAR=$HERE/lunar
TARGET=iqn.2026-01.io.lunar.conform:device
PORTAL=127.0.0.1:3260
LOG=/tmp/lunar.log
SOCKET=/tmp/lunar.sock

# debug_device TYPE PARAMETER...: has scsi_debug make one device of this type. Its generic node is in $local, its place
# in $place.
debug_device() {
    local type=$1 module
    shift
    [ ! -d /sys/module/scsi_debug ] || rmmod scsi_debug
    for module in "$HERE"/*.ko; do
        case $module in
        *scsi_debug.ko) insmod "$module" ptype="$type" num_tgts=1 max_luns=1 dev_size_mb=16 delay=0 "$@" ;;
        *) insmod "$module" 2>/dev/null ;;
        esac
    done
    eventually local_device
    place=$(local_place)
    local=$(local_device)
}
local_place() {
    local model
    for model in /sys/class/scsi_device/*/device/model; do
        grep -q scsi_debug "$model" && [[ $(readlink -f "$model") = *pseudo* ]] &&
            { model=${model%/device/model}; echo "${model##*/}"; return 0; }
    done
    return 1
}
local_device() {
    local at
    at=$(local_place) && at=$(ls "/sys/class/scsi_device/$at/device/scsi_generic" 2>/dev/null) && [ -c "/dev/$at" ] &&
        echo "/dev/$at"
}

# node_of IFACE KIND: the node of this kind (scsi_generic, block, scsi_tape/nst) of the session of an initiator.
node_of() {
    local session found
    for session in /sys/class/iscsi_session/session*; do
        [ "$(cat "$session/ifacename")" = "$1" ] || continue
        for found in "$session"/device/target*/*:*:*:0/"$2"*; do
            case $2 in
            scsi_tape/nst) [ -c "/dev/${found##*/}" ] && { echo "/dev/${found##*/}"; return 0; } ;;
            *) found=$(ls "$found" 2>/dev/null | head -n 1) && [ -n "$found" ] && [ -e "/dev/$found" ] &&
                { echo "/dev/$found"; return 0; } ;;
            esac
        done
    done
    return 1
}

# serve KEYS: starts the daemon with the local device as the volume `device`, with further keys.
serve() {
    cat >/tmp/lunar.toml <<END
[server]
cores = 2
memory = "32M"
driver = "${DRIVER//_/-}"
state = "/tmp/state"
[api]
socket = "$SOCKET"
[volume.device]
kind = "scsi"
path = "$local"
$1
$(one_target "$TARGET" "$PORTAL" '0 = "device"')
END
    "$LUNAR" daemon --config /tmp/lunar.toml >>"$LOG" 2>&1 &
    target=$!
    eventually iscsiadm -m discovery -t sendtargets -p "$PORTAL" ||
        { tail -n 5 "$LOG"; bad "the daemon serves the device"; finish; }
}
lunar() { "$LUNAR" "$@" --socket "$SOCKET"; }

# log_in: two sessions with different initiator names; $a and $b are their generic nodes.
log_in() {
    local name
    iscsiadm -m node -o delete >/dev/null 2>&1
    for name in default other; do
        iscsiadm -m node -o new -T "$TARGET" -p "$PORTAL" -I "$name" >/dev/null 2>&1
        try "login of the initiator $name" iscsiadm -m node -T "$TARGET" -p "$PORTAL" -I "$name" --login
        eventually node_of "$name" scsi_generic || { cat "$LOG"; bad "the initiator $name sees a device"; finish; }
    done
    a=$(node_of default scsi_generic)
    b=$(node_of other scsi_generic)
    calm
}
log_out() {
    iscsiadm -m node -T "$TARGET" -p "$PORTAL" --logout >/dev/null 2>&1
    kill "$target"
    wait "$target"
    equal "$1" 0 $? || tail -n 20 "$LOG"
}

# turs NODE: the sense data of the next command.
turs() { sg_raw -vv "$1" 00 00 00 00 00 00 2>&1; }
# The lines of the kernel's log before the event of a case.
MARK=0
# calm: takes all unit attention conditions of both.
calm() {
    local count
    for count in 1 2 3 4 5 6; do turs "$a" >/dev/null; turs "$b" >/dev/null; done
    MARK=$(dmesg | wc -l)
}
# told NODE: the sense data of the next command, and the unit attention conditions of the device that commands of the kernel
# itself have met since the event: the kernel logs them.
told() {
    turs "$1"
    dmesg | tail -n "+$((MARK + 1))" | grep -F "$(basename "$(readlink -f "/sys/class/scsi_generic/${1##*/}/device")"):"
}
# reports NAME NODE PATTERN: a case that passes if one of the next commands reports this.
reports() {
    local name=$1 node=$2 pattern=$3 count found=
    for count in 1 2 3 4; do found+=$(told "$node"); done
    if grep -Eq -- "$pattern" <<<"$found"; then ok "$name"; else echo "$found"; bad "$name"; fi
}
# conflicts NAME COMMAND...: a case that passes if the command ends with RESERVATION CONFLICT.
conflicts() {
    local name=$1 output
    shift
    output=$("$@" 2>&1)
    if [ $? = 24 ] || grep -qi "reservation conflict" <<<"$output"; then ok "$name"; else echo "$output"; bad "$name"; fi
}

identity_cases() {
    says "both are told the product of the device" "scsi_debug" sg_inq "$a"
    says "the other, too" "scsi_debug" sg_inq "$b"
    says "the identity is Lunar's" "NAA" sg_vpd -p di "$a"
    equal "it is one unit for both" "$(sg_vpd -p di "$a" | grep 0x)" "$(sg_vpd -p di "$b" | grep 0x)"
    try "VPD pages of the device" sg_vpd -p bl "$a"
    says "REPORT LUNS" "Lun list length = 8" sg_luns "$a"
    says "the commands that Lunar executes are listed" "Persistent reserve out" sg_opcodes "$a"
    refuse "a command that harms others is not listed" sh -c "sg_opcodes $a | grep -qi 'format unit'"
    refuse "it is refused" sg_raw "$a" 04 00 00 00 00 00
    says "lunar volume list" "scsi" lunar volume list
}

data_cases() {
    local disk other
    eventually node_of default block || { bad "the initiator has a disk"; return; }
    disk=$(node_of default block) other=$(node_of other block)
    head -c 4M /dev/urandom >/tmp/random
    try "one initiator writes 4 MiB" dd if=/tmp/random of="$disk" bs=1M oflag=direct status=none
    equal "the other reads them" "$(sum </tmp/random)" "$(read_sum "$other" count=4)"
    equal "the device has them" "$(sum </tmp/random)" "$(sg_dd if="$local" bs=512 count=8192 2>/dev/null | sum)"
    try "fio, 4 KiB, 16 deep" fio --name=load --filename="$disk" --ioengine=libaio --direct=1 --rw=randwrite --bs=4k \
        --iodepth=16 --size=2M --verify=crc32c --verify_fatal=1 --randseed=3 --output-format=terse
    try "fio, 512 KiB, 4 deep" fio --name=load --filename="$disk" --ioengine=libaio --direct=1 --rw=write --bs=512k \
        --iodepth=4 --size=8M --verify=crc32c --verify_fatal=1 --output-format=terse
    refuse "programs of this machine that want the disk for themselves are refused" \
        wipefs -a "/dev/$(ls "/sys/class/scsi_device/$place/device/block")"
    sense_cases
}

sense_cases() {
    says "sense data as the device gave it" "out of range|21 00|Illegal [Rr]equest" \
        sh -c "sg_raw -vv -r 512 $a 28 00 ff ff ff ff 00 00 01 00 2>&1; true"
    says "residuals of the device" "resid|bytes" sh -c "sg_raw -v -r 255 $a 12 00 00 00 ff 00 2>&1; true"
}

reservation_cases() {
    try "RESERVE(6) of one" sg_raw "$a" 16 00 00 00 00 00
    conflicts "a command of the other conflicts" sg_raw "$b" 00 00 00 00 00 00
    try "INQUIRY does not" sg_raw -r 36 "$b" 12 00 00 00 24 00
    try "RELEASE(6)" sg_raw "$a" 17 00 00 00 00 00
    try "the other may continue" sg_raw "$b" 00 00 00 00 00 00
    try "PERSISTENT RESERVE OUT: register one" sg_persist --out --register --param-sark=a1 "$a"
    try "register the other" sg_persist --out --register --param-sark=b2 "$b"
    says "both are registered" "0xb2" sg_persist --in -k "$a"
    try "reserve, Exclusive Access" sg_persist --out --reserve --param-rk=a1 --prout-type=3 "$a"
    conflicts "a read of the other conflicts" sg_raw -r 512 "$b" 28 00 00 00 00 00 00 00 01 00
    try "a read of the holder" sg_raw -r 512 "$a" 28 00 00 00 00 00 00 00 01 00
    try "preempt by the other" sg_persist --out --preempt --param-rk=b2 --param-sark=a1 --prout-type=3 "$b"
    reports "the first is told: registrations preempted" "$a" "[Rr]egistrations preempted"
    try "clear" sg_persist --out --clear --param-rk=b2 "$b"
    refuse "the device itself has never seen a reservation command" sh -c "sg_persist --in -k $local | grep -q 0x"
    calm
}

attention_cases() {
    # Sets GLTSD in the control mode page.
    printf '\0\0\0\0\0\0\0\0\x0a\x0a\x02\0\0\0\0\0\0\0\x02\x4b' >/tmp/control
    try "MODE SELECT of one" sg_raw -s 20 -i /tmp/control "$a" 55 10 00 00 00 00 00 00 14 00
    reports "the other is told: mode parameters changed" "$b" "[Mm]ode parameters changed"
    calm
    try "a reset of the logical unit" sg_reset -d -N "$a"
    reports "the first is told" "$a" "[Rr]eset"
    reports "the other is told" "$b" "[Rr]eset"
    try "the unit works after the reset" sg_raw -r 512 "$a" 28 00 00 00 00 00 00 00 01 00
    try "PREVENT of both" sh -c "sg_prevent $a && sg_prevent $b"
    try "ALLOW of one" sg_prevent --allow "$a"
    try "ALLOW of the other" sg_prevent --allow "$b"
    calm
}

vanish() { echo 1 >"/sys/class/scsi_device/$place/device/delete"; }
come_back() {
    echo "- - -" >"/sys/class/scsi_host/host${place%%:*}/scan"
    eventually local_device && local=$(local_device)
}
is_not_ready() { turs "$a" | grep -Eqi "not ready|does not respond"; }
works() { sg_raw -r 512 "$1" 28 00 00 00 00 00 00 00 01 00; }
replug_cases() {
    local round load
    for round in $(seq "$REPLUGS"); do
        # Reads and writes for as long as the device is there; errors are the point.
        fio --name=load --filename="$(node_of other block)" --ioengine=libaio --direct=1 --rw=randrw --bs=64k \
            --iodepth=8 --size=8M --time_based --runtime=60 --continue_on_error=all --output-format=terse >/dev/null 2>&1 &
        load=$!
        nap 1
        MARK=$(dmesg | wc -l)
        vanish
        try "$round: commands end with NOT READY" eventually is_not_ready
        try "$round: INQUIRY data is known" sg_raw -r 36 "$a" 12 00 00 00 24 00
        says "$round: lunar status says so" "is gone" eventually_says "is gone"
        kill $load
        wait $load
        come_back
        reports_eventually "$round: the first is told that it came back" "$a"
        reports "$round: the other, too" "$b" "[Pp]ower.on|[Rr]eset"
        try "$round: the device works again" eventually works "$a"
        try "$round: for the other, too" eventually works "$b"
        calm
    done
    kill -0 "$target" && ok "the daemon outlasts all that" || bad "the daemon outlasts all that"
}
eventually_says() {
    eventually sh -c "'$LUNAR' status --socket $SOCKET 2>&1 | grep -q '$1'"
    "$LUNAR" status --socket "$SOCKET"
}
reports_eventually() {
    local end=$((SECONDS + 60)) found
    while [ $SECONDS -lt $end ]; do
        found=$(told "$2")
        if grep -Eqi "power.on|reset occurred" <<<"$found"; then ok "$1"; return; fi
        nap 0.3
    done
    echo "$found"
    tail -n 5 "$LOG"
    bad "$1"
}

tape_cases() {
    local first second
    eventually node_of default scsi_tape/nst && eventually node_of other scsi_tape/nst ||
        { lsscsi -g; bad "both see a tape drive"; return; }
    first=$(node_of default scsi_tape/nst) second=$(node_of other scsi_tape/nst)
    says "lsscsi shows tape drives" "tape" lsscsi
    try "mt status" mt-st -f "$first" status
    try "mt rewind takes the drive" mt-st -f "$first" rewind
    conflicts "the other gets RESERVATION CONFLICT" sg_raw "$b" 01 00 00 00 00 00
    try "but may ask what it is" sg_inq "$b"
    try "LOAD UNLOAD gives the drive back" sg_raw "$a" 1b 00 00 00 00 00
    sg_raw "$b" 1b 00 00 00 01 00 >/dev/null 2>&1
    calm
    try "the other rewinds" sg_raw "$b" 01 00 00 00 00 00
    conflicts "now the first gets RESERVATION CONFLICT" sg_raw "$a" 01 00 00 00 00 00
    try "the session of the other ends" iscsiadm -m node -T "$TARGET" -p "$PORTAL" -I other --logout
    try "which gives the drive back" sg_raw "$a" 01 00 00 00 00 00
}

# The kernel must not take unit attention conditions with polls of its own.
echo 0 >/sys/module/block/parameters/events_dfl_poll_msecs
daemon 60
initiator other

debug_device 0 removable=1 lbpu=1
[ -n "$local" ] || { dmesg | tail -n 20; bad "scsi_debug makes a disk"; finish; }
serve 'exclusive = "tapes"'
log_in
identity_cases
data_cases
reservation_cases
attention_cases
replug_cases
log_out "the daemon ends"

debug_device 1
serve ''
log_in
tape_cases
log_out "the daemon ends after a tape drive"

debug_device 5
serve 'read-only = true'
log_in
says "both see a CD drive" "cd/dvd" sg_inq "$b"
try "TEST UNIT READY" sg_turs -n 3 "$a"
log_out "the daemon ends after a CD drive"

# Without privileges and without a sandbox, by the other driver.
debug_device 0
mkdir -p /tmp/user
chown 1000 "$local" /tmp/user
for driver in $(whole_only echo io_uring) epoll; do
    setpriv --reuid=1000 --clear-groups env XDG_STATE_HOME=/tmp/user "$LUNAR" serve --driver $driver --cores 2 \
        --memory 32 --name "$TARGET" --listen "$PORTAL" --shared --device "$local" >"$LOG" 2>&1 &
    target=$!
    eventually iscsiadm -m discovery -t sendtargets -p "$PORTAL"
    log_in
    try "a user serves a device on $driver" works "$a"
    try "a reset without privileges waits for commands" sg_reset -d -N "$a"
    try "and the device works" eventually works "$b"
    log_out "it ends on $driver"
done
finish
