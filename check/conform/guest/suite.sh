# Sourced: the conformance suite of libiscsi over iSER, beside the same suite over TCP.

# suite_of URL SUITE: the outcome of each test, one in a line.
suite_of() {
    iscsi-test-cu --dataloss --allow-sanitize --test "$2" "$1" 2>&1 | awk '
        function verdict(word) { print name, (skipped ? "skipped" : word); name = "" }
        /^Suite: / { suite = $2 }
        # The output of a test stands between its name and the verdict.
        /^  Test: / {
            name = suite "." $2; skipped = 0; sub(/.*\.\.\./, "")
        }
        /\[SKIPPED\]/ && !/Skipping assert$/ { skipped = 1 }
        name != "" && /^(passed|FAILED)/ { verdict(substr($0, 1, 6)) }'
}

# suite_test PORTAL/TARGET/LUN SUITE...: each suite has the same outcomes over both transports.
suite_test() {
    local volume=$1 suite
    shift
    for suite in "$@"; do
        suite_of "iscsi://$volume" "$suite" >/tmp/over-tcp
        suite_of "iser://$volume" "$suite" >/tmp/over-iser
        [ -s /tmp/over-tcp ] || bad "libiscsi $suite: no outcome over TCP"
        equal "libiscsi $suite over iSER: $(wc -l </tmp/over-tcp) outcomes as over TCP" "" \
            "$(diff /tmp/over-tcp /tmp/over-iser)"
    done
}
# all_suites: their names.
all_suites() { iscsi-test-cu --list | grep -E '^i?SCSI\.[^.]*$'; }
