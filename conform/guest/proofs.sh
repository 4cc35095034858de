# The kernel proves its name to targets that agree to one hash and one group each, and has them prove theirs.
. /test/lib.sh
. /test/settings # HOST HOSTNQN NQN HOST_KEY OWN_KEY OTHER_KEY WAYS

disk=/dev/nvme0n1

# There is no one who would make a node under /dev for a disk of another name.
there() { test -b "$disk"; }

attach() {
    local port=$1
    shift
    nvme connect -t tcp -a "$HOST" -s "$port" -n "$NQN" --hostnqn="$HOSTNQN" -i 2 "$@"
}

# connect NAME PORT OPTIONS...: and the disk is read.
connect() {
    local name=$1
    shift
    try "$name" attach "$@" || { dmesg | tail -n 15; return 1; }
    until_true 30 there || { dmesg | tail -n 15; bad "$name: no disk"; return 1; }
    try "$name: write" dd if=/dev/urandom of="$disk" bs=64k count=4 oflag=direct status=none
}

leave() {
    nvme disconnect -n "$NQN" >/dev/null 2>&1
    until_true 20 test ! -b "$disk"
}

mkdir -p /etc/nvme
echo "$HOSTNQN" >/etc/nvme/hostnqn
echo "${HOSTNQN##*uuid:}" >/etc/nvme/hostid
echo 16777216 >/proc/sys/net/core/rmem_max

for way in $WAYS; do
    port=${way%%:*}
    name=${way#*:}
    connect "$name" "$port" --dhchap-secret="$HOST_KEY"
    leave
    connect "$name, both sides" "$port" --dhchap-secret="$HOST_KEY" --dhchap-ctrl-secret="$OWN_KEY"
    leave
done

refuse "another key" attach "$port" --dhchap-secret="$OTHER_KEY"
refuse "no key" attach "$port"
refuse "a target with another key" attach "$port" --dhchap-secret="$HOST_KEY" --dhchap-ctrl-secret="$OTHER_KEY"
refuse "a host that is not named" nvme connect -t tcp -a "$HOST" -s "$port" -n "$NQN" \
    --hostnqn=nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001 --dhchap-secret="$HOST_KEY"
leave

# Once more, while the disk is used.
port=${WAYS%%:*}
if connect "before it proves its name again" "$port" --dhchap-secret="$HOST_KEY"; then
    controller=$(basename "$(ls -d /sys/class/nvme/nvme* | head -n 1)")
    dd if="$disk" of=/dev/null bs=64k count=200 iflag=direct status=none &
    # A secret that is set anew is tried at once.
    try "it proves its name again" sh -c "echo '$HOST_KEY' >/sys/class/nvme/$controller/dhchap_secret"
    sleep 2
    try "reads went on" wait $!
    equal "the controller lives" live "$(cat "/sys/class/nvme/$controller/state")"
    try "and is written to" dd if=/dev/zero of="$disk" bs=64k count=4 oflag=direct status=none
    leave
fi
finish
