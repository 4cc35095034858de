# Sourced by the guest's scripts. A case is one line for the test program: "@ok NAME", "@bad NAME" or "@skip NAME:
# REASON". The lines before "@bad" are its reason.
failed=0

ok() { echo "@ok $*"; }
bad() {
    echo "@bad $*"
    failed=$((failed + 1))
}

# try NAME COMMAND...: a case that passes if the command succeeds; otherwise the end of its output is printed.
try() {
    local name=$1 output status
    shift
    output=$("$@" 2>&1)
    status=$?
    if [ $status = 0 ]; then
        ok "$name"
    else
        printf '%s\n' "$output" | tail -n 12
        echo "status $status of: $*"
        bad "$name"
    fi
    return $status
}

# refuse NAME COMMAND...: a case that passes if the command fails.
refuse() {
    local name=$1
    shift
    if output=$("$@" 2>&1); then
        printf '%s\n' "$output" | tail -n 12
        echo "succeeded, but must fail: $*"
        bad "$name"
    else
        ok "$name"
    fi
}

# fails NAME PATTERN COMMAND...: a case that passes if the command fails, and a line of its output matches the pattern.
fails() {
    local name=$1 pattern=$2 output status
    shift 2
    output=$("$@" 2>&1)
    status=$?
    if [ $status != 0 ] && printf '%s\n' "$output" | grep -Eq -- "$pattern"; then
        ok "$name"
    else
        printf '%s\n' "$output" | tail -n 30
        echo "status $status, or no line like /$pattern/, of: $*"
        bad "$name"
    fi
}

# refuses NAME PATTERN ARGUMENT...: a case that passes if the program refuses to serve, and says this.
refuses() {
    local name=$1 pattern=$2
    shift 2
    fails "$name" "$pattern" timeout 60 "$LUNAR" serve --driver "$DRIVER" --listen 127.0.0.1:3261 "$@"
}

# one_target NAME PORTAL LUNS [NVME-PORT]: the sections of a target with one portal, where all initiators see these LUNs;
# with the address of a port for NVMe/TCP, as a subsystem, too.
one_target() {
    [ -z "${4:-}" ] || cat <<END
[portal.nvme]
protocol = "nvme-tcp"
address = "$4"
group = "p"
END
    cat <<END
[portal-group.p]
tag = 1
[portal.one]
address = "$2"
group = "p"
[target.main]
iqn = "$1"
${4:+nqn = \"n${1#i}\"}
portal-groups = ["p"]
[group.all]
targets = ["main"]
initiators = ["*"]
luns = { $3 }
END
}

# equal NAME WANTED FOUND: a case that passes if both are the same.
equal() {
    if [ "$2" = "$3" ]; then
        ok "$1"
    else
        echo "wanted: $2"
        echo "found:  $3"
        bad "$1"
        return 1
    fi
}

# says NAME PATTERN COMMAND...: a case that passes if the command succeeds and a line of its output matches the pattern.
says() {
    local name=$1 pattern=$2 output status
    shift 2
    output=$("$@" 2>&1)
    status=$?
    if [ $status = 0 ] && printf '%s\n' "$output" | grep -Eq -- "$pattern"; then
        ok "$name"
    else
        printf '%s\n' "$output" | tail -n 30
        echo "status $status, or no line like /$pattern/, of: $*"
        bad "$name"
    fi
}

# How long a case waits for a condition, in seconds: the machine may emulate several guests at once.
WAIT_LIMIT=120

# nap SECONDS: sleeps without starting a program where the shell can, because that costs an emulated processor time.
if [ -n "${BASH_VERSION:-}" ]; then
    mkfifo /tmp/never
    exec 9<>/tmp/never
    # Nothing is ever written there, so the read ends with its timeout.
    nap() { read -rt "$1" <&9 || :; }
else
    nap() { sleep "$1"; }
fi

# eventually COMMAND...: repeats a command until it succeeds, less often after a while.
eventually() {
    local end=$((SECONDS + WAIT_LIMIT)) tries=0
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || return 1
        tries=$((tries + 1))
        if [ $tries -lt 10 ]; then nap 0.1; else nap 0.7; fi
    done
}

# whole_only COMMAND: runs cases that the short form leaves out.
whole_only() { [ -z "${WHOLE:-}" ] || "$@"; }
# full_only COMMAND: runs cases that do not depend on the target's I/O driver. Only one driver's run has FULL.
full_only() { [ -z "${FULL:-}" ] || "$@"; }

sum() { sha256sum | cut -d' ' -f1; }
# read_sum FILE [DD-ARGUMENT...]: the checksum of the disk's data, read past the page cache.
read_sum() { local from=$1; shift; dd if="$from" iflag=direct bs=1M status=none "$@" | sum; }

# sg_of DISK: its sg device, which avoids the block layer's own checks of the medium.
sg_of() { echo "/dev/$(ls "/sys/block/${1##*/}/device/scsi_generic")"; }

# load_start DISK: starts verified writes in the background. load_end NAME: a case that passes if they succeeded. The
# rate and the size make them last for thirteen seconds; an emulated machine needs most of its time for each write.
load_start() {
    fio --name=background --filename="$1" --ioengine=libaio --direct=1 --rw=randwrite --bs=4k --iodepth=8 --size=2M \
        --rate_iops=40 --verify=crc32c --verify_fatal=1 --randseed=11 --output-format=terse >/tmp/fio.out 2>&1 &
    fio=$!
    sleep 1
}

load_end() {
    if wait $fio; then ok "$1"; else tail -n 8 /tmp/fio.out; bad "$1"; fi
}

# patient DISK: gives commands of this disk more time than a case waits, so that a case which passes has not waited for
# the time-out of a command.
patient() {
    local name=${1##*/} path
    case $name in
    # The queues are those of the paths, which have other names than the disk.
    nvme*) for path in /sys/block/nvme*/queue/io_timeout; do echo $((WAIT_LIMIT * 3000)) >"$path"; done ;;
    *) echo $((WAIT_LIMIT * 3)) >"/sys/block/$name/device/timeout" ;;
    esac
}

# write_random DISK MIB AT: writes random data at this MiB, where no later load writes; its checksum is in $kept_sum.
write_random() {
    head -c "$2M" /dev/urandom >/tmp/kept
    kept_sum=$(sum </tmp/kept)
    equal "prepare $2 MiB of random data" $(($2 << 20)) "$(stat -c %s /tmp/kept)"
    try "write it at MiB $3" dd if=/tmp/kept of="$1" bs=1M seek="$3" oflag=direct status=none
    rm -f /tmp/kept
}

# restart_in SECONDS: has the test program kill and restart the target then. The number of requests is reported at the
# script's end and must equal the number of restarts.
restarts=0
restart_in() {
    restarts=$((restarts + 1))
    { sleep "$1"; echo "@restart"; } &
}

finish() {
    echo "@restarts $restarts"
    exit $((failed > 0))
}

# restarts_under_load ROUNDS: the target is killed and restarted under verified writes to $disk.
restarts_under_load() {
    local round
    for round in $(seq "$1"); do
        fio --name=busy --filename="$disk" --offset=64M --size=4M --ioengine=libaio --direct=1 --rw=randwrite --bs=4k \
            --iodepth=16 --verify=crc32c --verify_fatal=1 --randseed=$round --rate_iops=150 --output-format=terse \
            >/tmp/busy 2>&1 &
        busy=$!
        sleep 2
        restarts=$((restarts + 1))
        echo "@restart"
        wait $busy
        equal "verified writes over kill -9 of the target, round $round" 0 $? || tail -n 5 /tmp/busy
    done
    equal "no I/O error" "" "$(dmesg | grep 'I/O error')"
}
# modules_of FOLDER [HELD]: loads the modules in it but the held one, whose file is in $held.
modules_of() {
    local module
    for module in "$1"/*; do
        case $module in
        *"-${2:-none}.ko") held=$module ;;
        *) insmod "$module" 2>/dev/null || [ -d "/sys/module/$(basename "${module#*-}" .ko)" ] || echo "$module: not loaded" ;;
        esac
    done
}
