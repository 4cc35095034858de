# Sourced by the scripts of the kernel's initiator for Fibre Channel over Ethernet: its cards, its ports and its disks.
lan= lan2=
for card in /sys/class/net/*; do
    case $(cat "$card/address") in
    52:54:00:12:34:02) lan=${card##*/} ;;
    52:54:00:12:34:03) lan2=${card##*/} ;;
    esac
done

# plain NAME: a name of a port as the kernel writes it.
plain() { echo "0x${1//:/}"; }
online() { grep -q Online /sys/class/fc_host/host*/port_state; }
# rport NAME: the remote port of this name, online.
rport() {
    local port
    for port in /sys/class/fc_remote_ports/rport-*; do
        [ "$(cat "$port/port_name" 2>/dev/null)" = "$(plain "$1")" ] || continue
        grep -q Online "$port/port_state" && { echo "${port##*/}"; return 0; }
    done
    return 1
}
# unit NAME LUN: the disk of this LUN at the port of this name.
unit() {
    local port found
    port=$(rport "$1") || return 1
    for found in /sys/class/fc_host/host*/device/"$port"/target*/*:*:*:"$2"/block/*; do
        [ -b "/dev/${found##*/}" ] && { echo "/dev/${found##*/}"; return 0; }
    done
    return 1
}
# found NAME: waits for both disks of the port of this name, which are in $disk and $second.
found() {
    try "the port $1 is online" eventually rport "$1" || {
        grep . /sys/class/fc_host/host*/port_* /sys/class/fc_remote_ports/*/port_*
        dmesg | tail -n 20
        finish
    }
    try "the kernel finds the disk" eventually unit "$1" 0 || { dmesg | tail -n 20; finish; }
    try "the kernel finds the second disk" eventually unit "$1" 1
    disk=$(unit "$1" 0)
    second=$(unit "$1" 1)
}
load() {
    local name=$1
    shift
    try "$name" fio --name=load --filename="$disk" --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 \
        --randseed=7 --output-format=terse "$@"
}
# The first command after a condition reports it.
clear_attentions() { sg_turs -n 5 "$1" >/dev/null 2>&1; return 0; }
no_errors() { equal "$1" "" "$(dmesg | grep -i 'I/O error')"; }

[ -n "$lan" ] || { bad "the network card of the link"; finish; }
[ -d /sys/module/fcoe ] || modprobe fcoe 2>/dev/null
[ -d /sys/module/fcoe ] || { echo "@skip fcoe: the kernel has no FCoE"; finish; }
