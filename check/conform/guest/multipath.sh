# dm-multipath over two paths, with verified writes while a path fails and is reinstated. Other scripts use its functions.

# path_is PATTERN: whether a line of multipathd's list of paths matches.
path_is() { multipathd show paths format "%d %t" | grep -Eq -- "$1"; }

# find_map DISK: sets $map once this path is part of a map.
find_map() {
    map=/dev/mapper/$(multipathd show paths format "%d %m" | awk -v disk="${1##*/}" '$1 == disk { print $2 }')
    test -b "$map"
}

# multipath_start [DEFAULT]: starts multipathd, which creates maps of all disks, with a further default.
multipath_start() {
    mkdir -p /etc/multipath
    cat >/etc/multipath.conf <<END
defaults {
    find_multipaths no
    polling_interval 1
    max_polling_interval 1
    no_path_retry queue
    reservation_key file
    path_grouping_policy group_by_prio
    failback immediate
    ${1:-}
}
END
    : >/etc/multipath/prkeys
    # multipathd reads the properties of disks from udev.
    export SYSTEMD_IGNORE_CHROOT=1
    /lib/systemd/systemd-udevd --daemon 2>/dev/null
    udevadm trigger --subsystem-match=block --action=add
    udevadm settle --timeout=30
    try "multipathd" multipathd
}

multipath_stop() {
    multipathd shutdown >/dev/null 2>&1
    eventually sh -c "! pidof multipathd"
    # Rules of udev may still read a map.
    try "multipath -F removes the map" eventually multipath -F
}

multipath_test() {
    local map
    multipath_start || return
    try "multipathd: the first path is active" eventually path_is "${one##*/} active"
    try "multipathd: the second path is active" eventually path_is "${two##*/} active"
    try "multipathd creates a map" eventually find_map "$one" || return
    find_map "$one"
    says "the path priority comes from ALUA" "prio=50" multipath -ll
    try "set group 2 to non-optimized" set_state 2 1 "$one"
    eventually sh -c "multipath -ll | grep -q prio=10"
    says "a non-optimized path has a lower priority" "prio=10" multipath -ll

    load_start "$map"
    ip link set eth0 down
    # Checked only once: a late path checker may still report the path as active.
    try "the first path fails" eventually path_is "${one##*/} failed"
    sleep 2
    ip link set eth0 up
    ip route add default via 10.0.2.2 2>/dev/null
    try "the first path is active again" eventually path_is "${one##*/} active"
    load_end "verified writes over a failure of the preferred path: no error"

    load_start "$map"
    try "set the preferred path to standby" set_state 1 2 "$two"
    sleep 3
    try "set it to optimized" set_state 1 0 "$two"
    sleep 1
    try "set the other path to unavailable" set_state 2 3 "$one"
    sleep 1
    try "set it to optimized, too" set_state 2 0 "$one"
    load_end "verified writes over changes of the access state: no error"
    eventually path_is "${two##*/} active"

    try "mpathpersist: register" mpathpersist --out --register --param-sark=0xabc "$map"
    says "mpathpersist: one key for each path" "2 registered|0xabc" mpathpersist --in -k "$map"
    try "mpathpersist: reserve" mpathpersist --out --reserve --param-rk=0xabc --prout-type=5 "$map"
    says "mpathpersist: reservation" "0xabc" mpathpersist --in -r "$map"
    try "writes to the map succeed" dd if=/dev/zero of="$map" bs=64k count=16 oflag=direct status=none
    try "mpathpersist: release" mpathpersist --out --release --param-rk=0xabc --prout-type=5 "$map"
    try "mpathpersist: clear" mpathpersist --out --clear --param-rk=0xabc "$map"
    multipath_stop
}
