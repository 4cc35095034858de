# Asymmetric access: how two ways are told apart, and what each state of a target port group does.

# set_state GROUP STATE DISK: 0 optimized, 1 not optimized, 2 standby, 3 unavailable, 14 offline.
set_state() { sg_stpg --tp="$1" --state="$2" "$3"; }

naa() { sg_vpd -p di "$1" | grep -A2 "designator type: NAA" | tail -n 1; }

access() {
    local name number shown sense
    says "sg_rtpg: a group" "target port group id : 0x1" sg_rtpg "$one"
    says "sg_rtpg: another group" "target port group id : 0x2" sg_rtpg "$one"
    says "sg_rtpg --extended" "target port group id : 0x2" sg_rtpg --extended "$one"
    says "the first way's port" "Relative target port: 0x1" sg_vpd -p di "$one"
    says "the second way's port" "Relative target port: 0x2" sg_vpd -p di "$two"
    says "the second way's group" "Target port group: 0x2" sg_vpd -p di "$two"
    says "page 88h names both ports" "Relative port=2" sg_vpd -p sp "$one"
    equal "the ways lead to one volume" "$(naa "$one")" "$(naa "$two")"
    for name in "$one" "$two"; do
        equal "the kernel's handler of $name" alua "$(cat "/sys/block/${name##*/}/device/dh_state")"
    done
    equal "the kernel sees the state" "active/optimized" "$(cat "/sys/block/${two##*/}/device/access_state")"
    for name in non-optimized:1:0x01: standby:2:0x02:standby unavailable:3:0x03:unavailable \
        offline:14:0x0e:offline; do
        IFS=: read -r name number shown sense <<<"$name"
        try "sg_stpg: second group $name" set_state 2 "$number" "$one"
        says "sg_rtpg shows it at the other way" "access state : $shown" \
            sh -c "sg_rtpg $two | grep -A1 'id : 0x2'"
        if [ -z "$sense" ]; then
            # The unit attention that the transition leaves.
            sg_turs -n 2 "$two" >/dev/null 2>&1
            reads "a read is carried out: $name" "$two"
        else
            sg_turs -n 1 "$two" >/dev/null 2>&1
            says "a read is refused: $name" "Additional sense: .*$sense" \
                sh -c "sg_raw --request=512 $two 28 00 00 00 00 64 00 00 01 00; true"
        fi
        try "INQUIRY is answered: $name" sg_inq "$two"
        reads "the other way reads: $name" "$one"
    done
    try "sg_stpg: back, asked by the other way" set_state 2 0 "$one"
    eventually sg_turs "$two"
    reads "and it reads again" "$two"
    says "sg_stpg: no such group" "Illegal request" sh -c "sg_stpg --tp=77 --state=2 $one 2>&1; true"
}
