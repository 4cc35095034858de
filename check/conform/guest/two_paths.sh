# Sourced: dm-multipath over two paths of different transports to one volume, one of which is optimized.
. /test/access.sh
. /test/multipath.sh

# names DISK: the NAA identifier of the volume, the relative identifier of the port, and its target port group.
names() {
    sg_vpd -p di "$1" >/tmp/names
    sed -n 's/.*\(0x6[0-9a-f]\{31\}\).*/\1/p; s/.*\(Relative target port: .*\)/\1/p; s/.*\(Target port group: .*\)/\1/p' /tmp/names
}

# shown: the paths of the map, each behind the priority of its group, as multipath -ll shows them.
shown() {
    multipath -ll "${map##*/}" | awk '
        match($0, /prio=[0-9]+/) { priority = substr($0, RSTART + 5, RLENGTH - 5) }
        match($0, /[0-9]+:[0-9]+:[0-9]+:[0-9]+ +sd[a-z]+/) {
            split(substr($0, RSTART, RLENGTH), words, / +/)
            printf "%s%s %s", separator, priority, words[2]
            separator = ", "
        }'
}
shows() { [ "$(shown)" = "$1" ]; }

# one_map BETTER OTHER: both disks are paths of one map; the first one has the priority of an optimized port.
one_map() {
    local better=${1##*/} other=${2##*/}
    local wanted="50 $better, 10 $other"
    try "multipathd: $better is active" eventually path_is "^$better active"
    try "multipathd: $other is active" eventually path_is "^$other active"
    try "multipathd has a map" eventually find_map "$1" || { multipathd show paths; return 1; }
    find_map "$1"
    eventually shows "$wanted"
    equal "multipath -ll shows both paths with their priorities" "$wanted" "$(shown)" || multipath -ll
    says "the kernel follows ALUA" "hwhandler='1 alua'" multipath -ll "${map##*/}"
    equal "the map has the WWID of both" "mpath-$(wwid "$1") mpath-$(wwid "$2")" "$(map_uuid) $(map_uuid)"
}
map_uuid() { dmsetup info -c --noheadings -o uuid "$map"; }
wwid() { multipathd show paths format "%d %w" | awk -v disk="${1##*/}" '$1 == disk { print $2 }'; }

# optimized OTHER: the port of the other path, whose target port group is 2.
optimized() {
    says "the initiator has made the other port optimized" "access state : 0x00" sh -c "sg_rtpg $1 | grep -A1 'id : 0x2'"
}

# settled BETTER OTHER: on a failover, the initiator has made the other port optimized by SET TARGET PORT GROUPS, which
# holds until it is undone. It does so again while a group of the map has both paths.
settled() {
    try "the other port is non-optimized again" eventually undone "$1" "$2"
    one_map "$1" "$2"
}
undone() {
    set_state 2 1 "$2"
    nap 3
    shows "50 ${1##*/}, 10 ${2##*/}"
}

# different BETTER OTHER: the identification pages differ in the port only.
different() {
    names "$1" >/tmp/better
    names "$2" >/tmp/other
    equal "both identify one volume" "$(grep '^0x6' /tmp/better)" "$(grep '^0x6' /tmp/other)"
    equal "the relative port identifiers differ" 2 "$(grep -h Relative /tmp/better /tmp/other | sort -u | wc -l)"
    equal "the target port groups differ" 2 "$(grep -h group /tmp/better /tmp/other | sort -u | wc -l)"
}

# without NAME DISK TAKE GIVE: verified writes to the map while its path with the highest priority is taken and given.
without() {
    dmesg -C
    load_start "$map"
    "$3"
    try "$1: the path fails" eventually path_is "^${2##*/} failed"
    nap 1
    "$4"
    try "$1: the path is active again" eventually path_is "^${2##*/} active" ||
        { multipathd show paths; cat "/sys/block/${2##*/}/device/state"; dmesg | tail -n 8; }
    load_end "$1: verified writes without an error"
    equal "$1: no I/O error of the map" "" "$(dmesg | grep 'I/O error, dev dm-')"
}

# same_bytes DISK DISK
same_bytes() { equal "both paths read the same bytes" "$(read_sum "$1" count=8)" "$(read_sum "$2" count=8)"; }
