# DH-HMAC-CHAP, unidirectional and bidirectional, with targets that each permit one hash and one DH group; and TLS.
. /test/lib.sh
. /test/settings # HOST HOSTNQN OTHER_HOST NQN HOST_KEY CONTROLLER_KEY OTHER_KEY ENDPOINTS TLS_PORT TLS_PERMITTED_PORT TLS_REQUIRED_PORT, and these:
# TLS_KEY TLS_KEY_SHA384 OTHER_TLS_KEY

disk=/dev/nvme0n1

# Nothing creates a device node for a disk of another name.
exists() { test -b "$disk"; }

nvme_connect() {
    local port=$1
    shift
    nvme connect -t tcp -a "$HOST" -s "$port" -n "$NQN" --hostnqn="$HOSTNQN" -i 2 "$@"
}

# connect NAME PORT OPTIONS...: connects and writes to the disk.
connect() {
    local name=$1
    shift
    try "$name" nvme_connect "$@" || { dmesg | tail -n 15; return 1; }
    eventually exists || { dmesg | tail -n 15; bad "$name: no disk"; return 1; }
    try "$name: write" dd if=/dev/urandom of="$disk" bs=64k count=4 oflag=direct status=none
}

disconnect() {
    nvme disconnect -n "$NQN" >/dev/null 2>&1
    eventually test ! -b "$disk"
}

mkdir -p /etc/nvme
echo "$HOSTNQN" >/etc/nvme/hostnqn
echo "${HOSTNQN##*uuid:}" >/etc/nvme/hostid
echo 16777216 >/proc/sys/net/core/rmem_max

for endpoint in $ENDPOINTS; do
    port=${endpoint%%:*}
    name=${endpoint#*:}
    connect "$name" "$port" --dhchap-secret="$HOST_KEY"
    disconnect
    connect "$name, bidirectional" "$port" --dhchap-secret="$HOST_KEY" --dhchap-ctrl-secret="$CONTROLLER_KEY"
    disconnect
done

refuse "a wrong host key" nvme_connect "$port" --dhchap-secret="$OTHER_KEY"
refuse "no host key" nvme_connect "$port"
refuse "a wrong controller key" nvme_connect "$port" --dhchap-secret="$HOST_KEY" --dhchap-ctrl-secret="$OTHER_KEY"
refuse "an unknown host" nvme connect -t tcp -a "$HOST" -s "$port" -n "$NQN" \
    --hostnqn="$OTHER_HOST" --dhchap-secret="$HOST_KEY"
disconnect

# Reauthentication while the disk is in use.
port=${ENDPOINTS%%:*}
if connect "before reauthentication" "$port" --dhchap-secret="$HOST_KEY"; then
    controller=$(basename "$(ls -d /sys/class/nvme/nvme* | head -n 1)")
    dd if="$disk" of=/dev/null bs=64k count=200 iflag=direct status=none &
    # Setting the secret starts a reauthentication.
    try "reauthentication" sh -c "echo '$HOST_KEY' >/sys/class/nvme/$controller/dhchap_secret"
    sleep 2
    # Only the shell that started dd can wait for it.
    wait $!
    equal "reads continue during reauthentication" 0 $?
    equal "the controller is live" live "$(cat "/sys/class/nvme/$controller/state")"
    try "write after reauthentication" dd if=/dev/zero of="$disk" bs=64k count=4 oflag=direct status=none
    disconnect
fi

# tlshd, which does TLS handshakes for the kernel, finds the keys in the kernel's keyring.
cat >/etc/tlshd.conf <<END
[debug]
loglevel=1
tls=0
nl=0

[authenticate]
keyrings=.nvme
END
tlshd -s >/tmp/tlshd.log 2>&1 &
# The kernel refuses TLS until tlshd has joined its netlink multicast group.
tlshd_ready() { awk '$2 == 16 && $4 != "00000000" { found = 1 } END { exit !found }' /proc/net/netlink; }
eventually tlshd_ready
show_logs() { dmesg | tail -n 10; tail -n 10 /tmp/tlshd.log; }

insert_key() {
    nvme check-tls-key --keyring=.nvme --insert --identity=1 --subsysnqn="$NQN" --hostnqn="$1" --keydata="$2"
}
try "insert the host's TLS key" insert_key "$HOSTNQN" "$TLS_KEY" || show_logs
if connect "connect with TLS" "$TLS_PORT" --tls; then
    try "prepare 8 MiB of random data" dd if=/dev/urandom of=/tmp/random bs=1M count=8 status=none
    try "write 8 MiB over TLS" dd if=/tmp/random of="$disk" bs=1M oflag=direct status=none
    sum=$(sha256sum </tmp/random)
    equal "read them over TLS" "$sum" "$(dd if="$disk" bs=256k count=32 iflag=direct status=none | sha256sum)"
else
    show_logs
fi
disconnect
connect "connect with TLS and bidirectional DH-HMAC-CHAP" "$TLS_PERMITTED_PORT" --tls --dhchap-secret="$HOST_KEY" --dhchap-ctrl-secret="$CONTROLLER_KEY" || show_logs
disconnect
refuse "TLS without DH-HMAC-CHAP" nvme_connect "$TLS_PERMITTED_PORT" --tls
# A daemon with a configuration file, which has a portal that requires TLS.
discover_at() { nvme discover -t tcp -a "$HOST" -s "$1" --hostnqn="$HOSTNQN"; }
says "discovery: TREQ says that TLS is required" "treq: *required" discover_at "$TLS_PERMITTED_PORT"
says "discovery: TLS 1.3" "sectype: *tls13" discover_at "$TLS_PERMITTED_PORT"
says "discovery: the referral" "traddr: *192\.0\.2\.7" discover_at "$TLS_PERMITTED_PORT"
refuse "discovery without TLS at a portal that requires TLS" discover_at "$TLS_REQUIRED_PORT"
connect "connect to a portal that requires TLS" "$TLS_REQUIRED_PORT" --tls --dhchap-secret="$HOST_KEY" || show_logs
disconnect
refuse "connect without TLS to a portal that requires TLS" nvme_connect "$TLS_REQUIRED_PORT" --dhchap-secret="$HOST_KEY"
refuse "connect without TLS to a host group with a TLS key" nvme_connect "$TLS_PORT"
try "insert the TLS key of another host" insert_key "$OTHER_HOST" "$OTHER_TLS_KEY"
refuse "TLS with an unknown key" nvme connect -t tcp -a "$HOST" -s "$TLS_PORT" -n "$NQN" \
    --hostnqn="$OTHER_HOST" --tls
disconnect
# A key for SHA-384 besides the first, which the kernel prefers.
try "insert a TLS key for SHA-384" insert_key "$HOSTNQN" "$TLS_KEY_SHA384" || show_logs
name="connect with TLS with a key for SHA-384"
if grep -q gnutls_psk_allocate_client_credentials2 "$(command -v tlshd)"; then
    connect "$name" "$TLS_PORT" --tls || show_logs
else
    echo "@skip $name: this tlshd uses SHA-256 for every key (it was built for GnuTLS before 3.8.11)"
    refuse "TLS with a key for SHA-384 that the host uses with SHA-256" nvme_connect "$TLS_PORT" --tls
fi
disconnect
finish
