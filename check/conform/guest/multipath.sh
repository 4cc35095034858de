# dm-multipath over two ways, with verified writes while a way is cut and comes back.

# ways PATTERN: whether multipathd's list of paths has a line like this.
ways() { multipathd show paths format "%d %t" | grep -Eq -- "$1"; }

# mapped: sets $map, once the first way is part of one.
mapped() {
    map=/dev/mapper/$(multipathd show paths format "%d %m" | awk -v disk="${one##*/}" '$1 == disk { print $2 }')
    test -b "$map"
}

multipath_test() {
    local map
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
}
END
    : >/etc/multipath/prkeys
    # multipathd takes what it knows of disks from udev.
    export SYSTEMD_IGNORE_CHROOT=1
    /lib/systemd/systemd-udevd --daemon 2>/dev/null
    udevadm trigger --subsystem-match=block --action=add
    udevadm settle --timeout=30
    try "multipathd" multipathd || return
    try "multipathd has the first way" eventually ways "${one##*/} active"
    try "multipathd has the second way" eventually ways "${two##*/} active"
    try "the map is there" eventually mapped || return
    mapped
    says "the priority comes from ALUA" "prio=50" multipath -ll
    try "group 2 is not optimized" set_state 2 1 "$one"
    eventually sh -c "multipath -ll | grep -q prio=10"
    says "a way that is not optimized has less priority" "prio=10" multipath -ll

    load_start "$map"
    ip link set eth0 down
    # Seen once: a checker that is late may take the way for good once more.
    try "the first way is cut" eventually ways "${one##*/} failed"
    sleep 2
    ip link set eth0 up
    ip route add default via 10.0.2.2 2>/dev/null
    try "the first way is back" eventually ways "${one##*/} active"
    load_end "verified writes while the better way was cut: no error"

    load_start "$map"
    try "the better way becomes standby" set_state 1 2 "$two"
    sleep 3
    try "and optimized again" set_state 1 0 "$two"
    sleep 1
    try "now the other becomes unavailable" set_state 2 3 "$one"
    sleep 1
    try "and comes back" set_state 2 0 "$one"
    load_end "verified writes over transitions: no error"
    eventually ways "${two##*/} active"

    try "mpathpersist: register" mpathpersist --out --register --param-sark=0xabc "$map"
    says "mpathpersist: one key for each way" "2 registered|0xabc" mpathpersist --in -k "$map"
    try "mpathpersist: reserve" mpathpersist --out --reserve --param-rk=0xabc --prout-type=5 "$map"
    says "mpathpersist: reservation" "0xabc" mpathpersist --in -r "$map"
    try "writes by the map go on" dd if=/dev/zero of="$map" bs=64k count=16 oflag=direct status=none
    try "mpathpersist: release" mpathpersist --out --release --param-rk=0xabc --prout-type=5 "$map"
    try "mpathpersist: clear" mpathpersist --out --clear --param-rk=0xabc "$map"
    multipathd shutdown >/dev/null 2>&1
    eventually sh -c "! pidof multipathd"
    try "the maps go away" multipath -F
}
