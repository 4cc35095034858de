# The kernel proves its name to targets that agree to one hash and one group each, and has them prove theirs; and it comes
# by secure channels.
. /test/lib.sh
. /test/settings # HOST HOSTNQN OTHER_HOST NQN HOST_KEY OWN_KEY OTHER_KEY WAYS SECURE BOTH DEMANDED, and these:
# CHANNEL_KEY LONG_CHANNEL_KEY OTHER_CHANNEL_KEY

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
    eventually there || { dmesg | tail -n 15; bad "$name: no disk"; return 1; }
    try "$name: write" dd if=/dev/urandom of="$disk" bs=64k count=4 oflag=direct status=none
}

leave() {
    nvme disconnect -n "$NQN" >/dev/null 2>&1
    eventually test ! -b "$disk"
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
    --hostnqn="$OTHER_HOST" --dhchap-secret="$HOST_KEY"
leave

# Once more, while the disk is used.
port=${WAYS%%:*}
if connect "before it proves its name again" "$port" --dhchap-secret="$HOST_KEY"; then
    controller=$(basename "$(ls -d /sys/class/nvme/nvme* | head -n 1)")
    dd if="$disk" of=/dev/null bs=64k count=200 iflag=direct status=none &
    # A secret that is set anew is tried at once.
    try "it proves its name again" sh -c "echo '$HOST_KEY' >/sys/class/nvme/$controller/dhchap_secret"
    sleep 2
    # Only the shell that has started it can wait for it.
    wait $!
    equal "reads went on" 0 $?
    equal "the controller lives" live "$(cat "/sys/class/nvme/$controller/state")"
    try "and is written to" dd if=/dev/zero of="$disk" bs=64k count=4 oflag=direct status=none
    leave
fi

# Who shakes hands for the kernel finds the keys in its keyring.
cat >/etc/tlshd.conf <<END
[debug]
loglevel=1
tls=0
nl=0

[authenticate]
keyrings=.nvme
END
tlshd -s >/tmp/tlshd.log 2>&1 &
# The kernel finds nobody to shake hands for it before he has joined the group of those who do.
joined() { awk '$2 == 16 && $4 != "00000000" { found = 1 } END { exit !found }' /proc/net/netlink; }
eventually joined
told() { dmesg | tail -n 10; tail -n 10 /tmp/tlshd.log; }

insert() {
    nvme check-tls-key --keyring=.nvme --insert --identity=1 --subsysnqn="$NQN" --hostnqn="$1" --keydata="$2"
}
try "the key of a secure channel" insert "$HOSTNQN" "$CHANNEL_KEY" || told
if connect "a secure channel" "$SECURE" --tls; then
    try "much is written by it" dd if=/dev/urandom of=/tmp/much bs=1M count=8 status=none
    try "and arrives" dd if=/tmp/much of="$disk" bs=1M oflag=direct status=none
    sum=$(sha256sum </tmp/much)
    equal "and is read again" "$sum" "$(dd if="$disk" bs=256k count=32 iflag=direct status=none | sha256sum)"
else
    told
fi
leave
connect "a secure channel, and proofs" "$BOTH" --tls --dhchap-secret="$HOST_KEY" --dhchap-ctrl-secret="$OWN_KEY" || told
leave
refuse "no proof in a secure channel" attach "$BOTH" --tls
# A service that goes by a file, with a portal that hears nothing but secure channels.
told_by() { nvme discover -t tcp -a "$HOST" -s "$1" --hostnqn="$HOSTNQN"; }
says "discovery tells that a secure channel is needed" "treq: *required" told_by "$BOTH"
says "and of which version" "sectype: *tls13" told_by "$BOTH"
says "and where else one may ask" "traddr: *192\.0\.2\.7" told_by "$BOTH"
refuse "nobody is told anything in the clear where secure channels are demanded" told_by "$DEMANDED"
connect "a portal for secure channels" "$DEMANDED" --tls --dhchap-secret="$HOST_KEY" || told
leave
refuse "nothing else there" attach "$DEMANDED" --dhchap-secret="$HOST_KEY"
refuse "no secure channel" attach "$SECURE"
try "the key of another host" insert "$OTHER_HOST" "$OTHER_CHANNEL_KEY"
refuse "a secure channel with a key that nobody knows" nvme connect -t tcp -a "$HOST" -s "$SECURE" -n "$NQN" \
    --hostnqn="$OTHER_HOST" --tls
leave
# A key of SHA-384 beside the first: the kernel takes it before that.
try "a key of SHA-384" insert "$HOSTNQN" "$LONG_CHANNEL_KEY" || told
name="a secure channel by a key of SHA-384"
if grep -q gnutls_psk_allocate_client_credentials2 "$(command -v tlshd)"; then
    connect "$name" "$SECURE" --tls || told
else
    echo "@skip $name: this tlshd takes SHA-256 for every key (it was made for GnuTLS before 3.8.11)"
    refuse "a key of SHA-384 that was used with SHA-256" attach "$SECURE" --tls
fi
leave
finish
