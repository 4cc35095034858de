# Clusters: three nodes with an initiator name each fence one another by persistent reservations.

out() { sg_persist --no-inquiry --out "$@"; }
keys() { sg_persist --no-inquiry --in --read-keys "$1"; }
reservation() { sg_persist --no-inquiry --in --read-reservation "$1"; }
# clear_attentions DISK: clears the pending unit attention conditions.
clear_attentions() { sg_turs -n 3 "$1" >/dev/null 2>&1; true; }

# fence TYPE: fencing as cluster agents do it: all register, one reserves, one is preempted and registers again.
fence() {
    local type=$1 node
    for node in a b; do
        eval "local disk=\$$node"
        clear_attentions "$disk"
        try "type $type: $node registers" out --register-ignore --param-sark="0x$node$node" "$disk"
    done
    try "type $type: a reserves" out --reserve --param-rk=0xaa --prout-type="$type" "$a"
    says "type $type: the keys" "0xbb" keys "$a"
    says "type $type: the reservation" "type: .*[Rr]egistrants" reservation "$b"
    writes "type $type: a registrant can write" "$b"
    clear_attentions "$c"
    conflict "type $type: a node without registration cannot write" "$c"
    if [ "$type" = 5 ] || [ "$type" = 7 ]; then
        reads "type $type: a node without registration can read" "$c"
    else
        says "type $type: a node without registration cannot read" "Reservation Conflict" \
            sh -c "sg_raw --request=512 $c 28 00 00 00 00 64 00 00 01 00; true"
    fi
    # b writes while a fences it: its writes must end with an error.
    dd if=/dev/zero of="$b" bs=4k seek=1000 count=100000 oflag=direct status=none 2>/tmp/fenced &
    node=$!
    sleep 0.3
    try "type $type: a preempts b and aborts its tasks" \
        out --preempt-abort --param-rk=0xaa --param-sark=0xbb --prout-type="$type" "$a"
    if wait $node; then bad "type $type: the fenced node's writes end with an error"; else
        ok "type $type: the fenced node's writes end with an error"; fi
    clear_attentions "$b"
    conflict "type $type: the fenced node cannot write" "$b"
    refuse "type $type: its key is removed" sh -c "sg_persist --no-inquiry --in --read-keys $a | grep -q 0xbb"
    writes "type $type: the fencing node can write" "$a"
    try "type $type: b registers again" out --register-ignore --param-sark=0xbb "$b"
    writes "type $type: b can write" "$b"
    says "type $type: full status" "0xbb" sg_persist --no-inquiry --in --read-full-status "$a"
    try "type $type: clear" out --clear --param-rk=0xaa "$a"
    clear_attentions "$b"
}

# Arbitration as in a Windows failover cluster: the owner defends its reservation; if it does not, the challenger takes
# it.
arbitrate() {
    try "arbitration: the owner registers" out --register-ignore --param-sark=0x1a01 "$a"
    try "arbitration: the owner reserves" out --reserve --param-rk=0x1a01 --prout-type=5 "$a"
    try "arbitration: the owner reserves again, as it does every three seconds" out --reserve --param-rk=0x1a01 --prout-type=5 "$a"
    try "arbitration: the challenger registers" out --register-ignore --param-sark=0x1b01 "$b"
    refuse "arbitration: the challenger cannot reserve" out --reserve --param-rk=0x1b01 --prout-type=5 "$b"
    says "arbitration: the challenger reads the owner's key" "Key=0x1a01" reservation "$b"
    try "arbitration: the owner defends by preempting the challenger" \
        out --preempt --param-rk=0x1a01 --param-sark=0x1b01 --prout-type=5 "$a"
    clear_attentions "$b"
    conflict "arbitration: the challenger cannot write" "$b"
    try "arbitration: the challenger registers again" out --register-ignore --param-sark=0x1b02 "$b"
    try "arbitration: the challenger preempts an owner that does not answer" \
        out --preempt --param-rk=0x1b02 --param-sark=0x1a01 --prout-type=5 "$b"
    says "arbitration: the challenger holds the reservation" "Key=0x1b02" reservation "$b"
    says "arbitration: the former owner gets a unit attention condition" "preempted" sh -c "sg_turs -vv $a 2>&1; true"
    conflict "arbitration: the former owner cannot write" "$a"
    try "arbitration: release" out --release --param-rk=0x1b02 --prout-type=5 "$b"
    try "arbitration: unregister" out --register --param-rk=0x1b02 --param-sark=0 "$b"
    says "arbitration: no key is registered" "no registered|there are NO" keys "$b"
}

# Registrations with APTPL, and the reservation, survive a kill of the target.
persist_through_power_loss() {
    try "a registers with APTPL" out --register-ignore --param-sark=0xaa --param-aptpl "$a"
    try "b registers with APTPL" out --register-ignore --param-sark=0xbb --param-aptpl "$b"
    try "a reserves" out --reserve --param-rk=0xaa --prout-type=7 "$a"
    restart_in 0.2
    wait $!
    eventually sh -c "sg_turs -n 4 $a && sg_turs -n 4 $b && sg_turs -n 4 $c"
    says "after a kill of the target: the keys" "0xbb" keys "$a"
    says "after a kill of the target: the reservation" "[Aa]ll [Rr]egistrants" reservation "$b"
    writes "after a kill of the target: a registrant can write" "$b"
    conflict "after a kill of the target: a node without registration cannot write" "$c"
    try "clear" out --clear --param-rk=0xaa "$a"
    writes "after CLEAR a node without registration can write" "$c"
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
