# Sourced: compares disks under the same loads, in turns.
HERE=/test/figures
LUNAR=$HERE/lunar
LOG=/tmp/lunar.log
ROUNDS=3
RUNTIME=3
# The name of each load, and fio's words for it: direction, bytes, depth.
LOADS=(
    "4 KiB random read, depth 1:randread:4k:1"
    "4 KiB random read, depth 32:randread:4k:32"
    "4 KiB random write, depth 32:randwrite:4k:32"
    "128 KiB read, depth 8:read:128k:8"
    "128 KiB write, depth 8:write:128k:8"
)

# busy FILE: the time in which the processors worked, in microseconds, of a copy of /proc/stat. A tick is 10 ms.
busy() { awk '/^cpu / { print ($2 + $3 + $4 + $7 + $8) * 10000 }' "$1"; }
# measured DISK DIRECTION BYTES DEPTH: commands per second, and microseconds of the processors for each. The start and
# the end of fio are not counted.
measured() {
    fio --name=figures --filename="$1" --ioengine=libaio --direct=1 --rw="$2" --bs="$3" --iodepth="$4" --size=48M \
        --time_based --runtime=$RUNTIME --randseed=5 --output-format=terse --terse-version=3 --output=/tmp/fio.terse \
        --exec_prerun="cp /proc/stat /tmp/before" --exec_postrun="cp /proc/stat /tmp/after" >/tmp/fio.out 2>&1 ||
        { tail -n 5 /tmp/fio.out >&2; return 1; }
    awk -F ';' -v busy=$(($(busy /tmp/after) - $(busy /tmp/before))) '
        { rate = $8 + $49; count = rate * ($9 + $50) / 1000
          if (count == 0) exit 1
          print rate, busy / count }' /tmp/fio.terse
}
# compare TABLE TARGET=DISK...: measures all disks under all loads; a case that passes if each has a figure.
compare() {
    local table=$1 round load each found wanted=0
    shift
    : >/tmp/figures
    for each in "$@"; do
        # Memory that was never written costs less.
        dd if=/dev/urandom of="${each#*=}" bs=1M count=48 oflag=direct status=none
    done
    for round in $(seq $ROUNDS); do
        for load in "${LOADS[@]}"; do
            for each in "$@"; do
                IFS=: read -r name direction bytes depth <<<"$load"
                wanted=$((wanted + 1))
                found=$(measured "${each#*=}" "$direction" "$bytes" "$depth") &&
                    echo "$table|$name|${each%%=*}|${found/ /|}" >>/tmp/figures
            done
        done
    done
    equal "$table: $wanted figures" "$wanted" "$(wc -l </tmp/figures)"
    for load in "${LOADS[@]}"; do
        for each in "$@"; do
            median "$table|${load%%:*}|${each%%=*}"
        done
    done
}
# median KEY: the figure of a load and a target.
median() {
    local rate cost
    rate=$(grep -F "$1|" /tmp/figures | cut -d '|' -f 4 | sort -n | sed -n "$(((ROUNDS + 1) / 2))p")
    cost=$(grep -F "$1|" /tmp/figures | cut -d '|' -f 5 | sort -n | sed -n "$(((ROUNDS + 1) / 2))p")
    echo "@figure $1|$rate|$cost"
}

# The kernel's target (LIO).
TARGETS=/sys/kernel/config/target
# lio_store BACKEND CONTROL [DEVICE]: makes its backstore, of a device if one is given.
lio_store() {
    local store=$TARGETS/core/${1}_0/store
    mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
    mkdir -p /var/target/pr "$store" && echo "$2" >"$store/control" || return 1
    [ -z "${3:-}" ] || echo "$3" >"$store/udev_path" || return 1
    echo 1 >"$store/enable"
}
# lio_at FABRIC NAME GROUP BACKEND [INITIATOR]: the backstore is LUN 0 of this target; the initiator may use it, where the
# fabric has no group for all of them.
lio_at() {
    local at=$TARGETS/$1/$2/$3
    mkdir -p "$TARGETS/$1" && mkdir -p "$at/lun/lun_0" && ln -s "$TARGETS/core/${4}_0/store" "$at/lun/lun_0/store" || return 1
    [ -z "${5:-}" ] || { mkdir -p "$at/acls/$5/lun_0" && ln -s "$at/lun/lun_0" "$at/acls/$5/lun_0/lun"; }
}
# lio_iscsi NAME PORTAL BACKEND [MODULE]: the backstore over iSCSI, or over iSER with the module for that.
lio_iscsi() {
    local at=$TARGETS/iscsi/$1/tpgt_1
    lio_at iscsi "$1" tpgt_1 "$3" && mkdir -p "$at/np/$2" || return 1
    [ -z "${4:-}" ] || echo 1 >"$at/np/$2/$4" || return 1
    echo 0 >"$at/attrib/authentication"
    echo 1 >"$at/attrib/generate_node_acls"
    echo 1 >"$at/attrib/cache_dynamic_acls"
    echo 0 >"$at/attrib/demo_mode_write_protect"
    echo 1 >"$at/enable"
}
# log_in NAME PORTAL [INTERFACE [LUN]]: logs in; the disk is in $disk.
log_in() {
    local lun=${4:-0}
    iscsiadm -m node -o new -T "$1" -p "$2" -I "${3:-default}" >/dev/null 2>&1
    try "login to $1" iscsiadm -m node -T "$1" -p "$2" --login
    eventually disk_of_target "$1" "$lun" || { dmesg | tail -n 20; bad "$1 has a disk"; finish; }
    disk=$(disk_of_target "$1" "$lun")
    eventually blockdev --getsize64 "$disk"
}
# disk_of_target NAME LUN: the disk of this LUN.
disk_of_target() {
    local session found
    for session in /sys/class/iscsi_session/session*; do
        [ "$(cat "$session/targetname")" = "$1" ] || continue
        for found in "$session"/device/target*/*:*:*:"$2"/block/*; do
            [ -b "/dev/${found##*/}" ] && { echo "/dev/${found##*/}"; return 0; }
        done
    done
    return 1
}
# namespaces NQN: the disks of a subsystem, in the order of their numbers.
namespaces() {
    local at
    for at in /sys/class/nvme-subsystem/nvme-subsys*; do
        [ "$(cat "$at/subsysnqn")" = "$1" ] || continue
        for at in "$at"/nvme*n*; do
            [ ! -b "/dev/${at##*/}" ] || echo "/dev/${at##*/}"
        done
    done
}
# serve TEXT [NAME]: starts a daemon with these sections of its configuration. Daemons have names if there are several.
serve() {
    local name=${2:-lunar}
    mkdir -p "/tmp/state-$name"
    cat >"/tmp/$name.toml" <<END
[server]
cores = 1
memory = "64M"
driver = "${DRIVER//_/-}"
state = "/tmp/state-$name"
[api]
socket = "/tmp/$name.sock"
$1
END
    chmod 600 "/tmp/$name.toml"
    "$LUNAR" daemon --config "/tmp/$name.toml" >>"$LOG" 2>&1 &
    target=$!
    eventually "$LUNAR" status --socket "/tmp/$name.sock" || { tail -n 20 "$LOG"; bad "the daemon serves"; finish; }
}
