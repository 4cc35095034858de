# Clusters: three nodes, each an initiator with a name of its own, keep each other out by persistent reservations.

out() { sg_persist --no-inquiry --out "$@"; }
keys() { sg_persist --no-inquiry --in --read-keys "$1"; }
reservation() { sg_persist --no-inquiry --in --read-reservation "$1"; }
# settled DISK: unit attentions are taken.
settled() { sg_turs -n 3 "$1" >/dev/null 2>&1; true; }

# fence TYPE: as the agents do it: all register, one reserves for registrants, one is preempted and comes back.
fence() {
    local type=$1 node
    for node in a b; do
        eval "local disk=\$$node"
        settled "$disk"
        try "type $type: $node registers" out --register-ignore --param-sark="0x$node$node" "$disk"
    done
    try "type $type: a reserves" out --reserve --param-rk=0xaa --prout-type="$type" "$a"
    says "type $type: the keys" "0xbb" keys "$a"
    says "type $type: the reservation" "type: .*[Rr]egistrants" reservation "$b"
    writes "type $type: a registrant writes" "$b"
    settled "$c"
    conflict "type $type: who has not registered does not write" "$c"
    if [ "$type" = 5 ] || [ "$type" = 7 ]; then
        reads "type $type: but reads" "$c"
    else
        says "type $type: nor reads" "Reservation Conflict" \
            sh -c "sg_raw --request=512 $c 28 00 00 00 00 64 00 00 01 00; true"
    fi
    # b writes while a fences it: its writes must end, with an error.
    dd if=/dev/zero of="$b" bs=4k seek=1000 count=100000 oflag=direct status=none 2>/tmp/fenced &
    node=$!
    sleep 0.3
    try "type $type: a preempts b and aborts its tasks" \
        out --preempt-abort --param-rk=0xaa --param-sark=0xbb --prout-type="$type" "$a"
    if wait $node; then bad "type $type: the fenced node's writes end with an error"; else
        ok "type $type: the fenced node's writes end with an error"; fi
    settled "$b"
    conflict "type $type: the fenced node does not write" "$b"
    refuse "type $type: its key is gone" sh -c "sg_persist --no-inquiry --in --read-keys $a | grep -q 0xbb"
    writes "type $type: the one who fenced writes" "$a"
    try "type $type: b is let in again" out --register-ignore --param-sark=0xbb "$b"
    writes "type $type: and writes" "$b"
    says "type $type: full status" "0xbb" sg_persist --no-inquiry --in --read-full-status "$a"
    try "type $type: clear" out --clear --param-rk=0xaa "$a"
    settled "$b"
}

# As a Windows failover cluster arbitrates: the owner defends its reservation, the challenger takes it when it does not.
arbitrate() {
    try "arbitration: the owner registers" out --register-ignore --param-sark=0x1a01 "$a"
    try "arbitration: and reserves" out --reserve --param-rk=0x1a01 --prout-type=5 "$a"
    try "arbitration: and again, as it does every three seconds" out --reserve --param-rk=0x1a01 --prout-type=5 "$a"
    try "arbitration: the challenger registers" out --register-ignore --param-sark=0x1b01 "$b"
    refuse "arbitration: it cannot reserve" out --reserve --param-rk=0x1b01 --prout-type=5 "$b"
    says "arbitration: it looks who owns" "Key=0x1a01" reservation "$b"
    try "arbitration: the owner defends: it throws the challenger out" \
        out --preempt --param-rk=0x1a01 --param-sark=0x1b01 --prout-type=5 "$a"
    settled "$b"
    conflict "arbitration: the challenger is out" "$b"
    try "arbitration: the challenger registers again" out --register-ignore --param-sark=0x1b02 "$b"
    try "arbitration: the owner does not answer: it is preempted" \
        out --preempt --param-rk=0x1b02 --param-sark=0x1a01 --prout-type=5 "$b"
    says "arbitration: the challenger owns" "Key=0x1b02" reservation "$b"
    says "arbitration: the old owner hears of it" "preempted" sh -c "sg_turs -vv $a 2>&1; true"
    conflict "arbitration: the old owner is out" "$a"
    try "arbitration: release" out --release --param-rk=0x1b02 --prout-type=5 "$b"
    try "arbitration: unregister" out --register --param-rk=0x1b02 --param-sark=0 "$b"
    says "arbitration: nobody is left" "no registered|there are NO" keys "$b"
}

# What was asked to persist is there after the target died.
persist_through_power_loss() {
    try "a registers, through power loss" out --register-ignore --param-sark=0xaa --param-aptpl "$a"
    try "b registers, through power loss" out --register-ignore --param-sark=0xbb --param-aptpl "$b"
    try "a reserves" out --reserve --param-rk=0xaa --prout-type=7 "$a"
    restart_in 0.2
    wait $!
    eventually sh -c "sg_turs -n 4 $a && sg_turs -n 4 $b && sg_turs -n 4 $c"
    says "after the target died: the keys" "0xbb" keys "$a"
    says "after the target died: the reservation" "[Aa]ll [Rr]egistrants" reservation "$b"
    writes "after the target died: a registrant writes" "$b"
    conflict "after the target died: who is out stays out" "$c"
    try "clear" out --clear --param-rk=0xaa "$a"
    writes "after clear everybody writes" "$c"
}

cluster_test() {
    local a b c name
    for name in a b c; do
        initiator "node-$name"
        log_in_at "node $name" "node-$name" 1 "$PORTAL1"
    done
    a=$(disk_at node-a 1) b=$(disk_at node-b 1) c=$(disk_at node-c 1)
    for name in 5 7 8; do fence "$name"; done
    arbitrate
    persist_through_power_loss
    for name in a b c; do iscsiadm -m node -I "node-$name" --logout >/dev/null; done
}
