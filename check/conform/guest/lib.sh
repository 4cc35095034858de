# Sourced by the guest's scripts. A case is one line for the harness: "@ok NAME", "@bad NAME" or "@skip NAME: REASON";
# what stands before a bad one is why.
failed=0

ok() { echo "@ok $*"; }
bad() {
    echo "@bad $*"
    failed=$((failed + 1))
}

# try NAME COMMAND...: a case that is good if the command succeeds; what it says is told only if not.
try() {
    local name=$1 said status
    shift
    said=$("$@" 2>&1)
    status=$?
    if [ $status = 0 ]; then
        ok "$name"
    else
        printf '%s\n' "$said" | tail -n 12
        echo "status $status of: $*"
        bad "$name"
    fi
    return $status
}

# refuse NAME COMMAND...: a case that is good if the command fails.
refuse() {
    local name=$1
    shift
    if said=$("$@" 2>&1); then
        printf '%s\n' "$said" | tail -n 12
        echo "succeeded, and should not have: $*"
        bad "$name"
    else
        ok "$name"
    fi
}

# equal NAME WANTED FOUND
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

# says NAME PATTERN COMMAND...: a case that is good if the command succeeds and a line of its output matches.
says() {
    local name=$1 pattern=$2 said status
    shift 2
    said=$("$@" 2>&1)
    status=$?
    if [ $status = 0 ] && printf '%s\n' "$said" | grep -Eq -- "$pattern"; then
        ok "$name"
    else
        printf '%s\n' "$said" | tail -n 30
        echo "status $status, or no line like /$pattern/, of: $*"
        bad "$name"
    fi
}

# How long a case waits for what must come, in seconds: the machine may emulate several guests and be busy besides.
PATIENCE=120

# nap SECONDS: to start a program for it would keep an emulated processor busy, which a machine that boots does not mind.
if [ -n "${BASH_VERSION:-}" ]; then
    mkfifo /tmp/never
    exec 9<>/tmp/never
    # Nobody writes there: it ends with the time.
    nap() { read -rt "$1" <&9 || :; }
else
    nap() { sleep "$1"; }
fi

# eventually COMMAND...: until it succeeds; looked at seldom after a while.
eventually() {
    local end=$((SECONDS + PATIENCE)) tries=0
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || return 1
        tries=$((tries + 1))
        if [ $tries -lt 10 ]; then nap 0.1; else nap 0.7; fi
    done
}

# whole COMMAND: what no driver of the target's can change is tried with one of them.
whole() { [ -z "${WHOLE:-}" ] || "$@"; }

sum() { sha256sum | cut -d' ' -f1; }
# read_sum FILE [DD-ARGUMENT...]: the checksum of what the disk has, not the page cache.
read_sum() { local from=$1; shift; dd if="$from" iflag=direct bs=1M status=none "$@" | sum; }

# sg_of DISK: the node that goes past the block layer, which looks at media by itself.
sg_of() { echo "/dev/$(ls "/sys/block/${1##*/}/device/scsi_generic")"; }

# load_start DISK: verified writes in the background, until load_end NAME, which is a case that is good if they were.
load_start() {
    fio --name=ways --filename="$1" --ioengine=libaio --direct=1 --rw=randwrite --bs=4k --iodepth=8 --size=8M \
        --rate_iops=150 --verify=crc32c --verify_fatal=1 --randseed=11 --output-format=terse >/tmp/fio.out 2>&1 &
    fio=$!
    sleep 1
}

load_end() {
    if wait $fio; then ok "$1"; else tail -n 8 /tmp/fio.out; bad "$1"; fi
}

# keep DISK MIB AT: random data from that MiB on, which no later load may touch; its checksum is in $kept.
keep() {
    head -c "$2M" /dev/urandom >/tmp/kept
    kept=$(sum </tmp/kept)
    equal "random data to be found again: $2 MiB" $(($2 << 20)) "$(stat -c %s /tmp/kept)"
    try "written from MiB $3 on" dd if=/tmp/kept of="$1" bs=1M seek="$3" oflag=direct status=none
    rm -f /tmp/kept
}

# restart_in SECONDS: the harness kills the target then, and starts it again. When the script ends it must have done so as
# often as it was asked to.
restarts=0
restart_in() {
    restarts=$((restarts + 1))
    { sleep "$1"; echo "@restart"; } &
}

finish() {
    echo "@restarts $restarts"
    exit $((failed > 0))
}
