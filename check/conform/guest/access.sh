# Asymmetric access: the two paths are distinguished, and each state of a target port group has its effect.

# set_state GROUP STATE DISK: 0 optimized, 1 not optimized, 2 standby, 3 unavailable, 14 offline.
set_state() { sg_stpg --tp="$1" --state="$2" "$3"; }

naa() { sg_vpd -p di "$1" | grep -A2 "designator type: NAA" | tail -n 1; }

access_test() {
    local name number shown sense
    says "sg_rtpg: first group" "target port group id : 0x1" sg_rtpg "$one"
    says "sg_rtpg: second group" "target port group id : 0x2" sg_rtpg "$one"
    says "sg_rtpg --extended" "target port group id : 0x2" sg_rtpg --extended "$one"
    says "first path: relative target port 1" "Relative target port: 0x1" sg_vpd -p di "$one"
    says "second path: relative target port 2" "Relative target port: 0x2" sg_vpd -p di "$two"
    says "second path: target port group 2" "Target port group: 0x2" sg_vpd -p di "$two"
    says "VPD page 88h lists both ports" "Relative port=2" sg_vpd -p sp "$one"
    equal "both paths have the same NAA designator" "$(naa "$one")" "$(naa "$two")"
    for name in "$one" "$two"; do
        equal "device handler of $name" alua "$(cat "/sys/block/${name##*/}/device/dh_state")"
    done
    equal "the kernel reads the access state" "active/optimized" "$(cat "/sys/block/${two##*/}/device/access_state")"
    for name in non-optimized:1:0x01: standby:2:0x02:standby unavailable:3:0x03:unavailable \
        offline:14:0x0e:offline; do
        IFS=: read -r name number shown sense <<<"$name"
        try "sg_stpg: second group $name" set_state 2 "$number" "$one"
        says "sg_rtpg on the second path: group 2 is $name" "access state : $shown" \
            sh -c "sg_rtpg $two | grep -A1 'id : 0x2'"
        if [ -z "$sense" ]; then
            # Clear the unit attention condition of the transition.
            sg_turs -n 2 "$two" >/dev/null 2>&1
            reads "READ succeeds: $name" "$two"
        else
            sg_turs -n 1 "$two" >/dev/null 2>&1
            says "READ is refused: $name" "Additional sense: .*$sense" \
                sh -c "sg_raw --request=512 $two 28 00 00 00 00 64 00 00 01 00; true"
        fi
        try "INQUIRY is answered: $name" sg_inq "$two"
        reads "READ on the other path succeeds: $name" "$one"
    done
    try "sg_stpg on the first path: second group optimized" set_state 2 0 "$one"
    eventually sg_turs "$two"
    reads "READ succeeds after the transition" "$two"
    says "sg_stpg: an unknown group is refused" "Illegal request" sh -c "sg_stpg --tp=77 --state=2 $one 2>&1; true"
}
