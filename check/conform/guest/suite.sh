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

# Tests that look at the length of the data of a short answer. libiscsi takes the expected length for it over iSER,
# whatever the residual count says.
SHORT_ANSWERS="^(Inquiry\.(Standard|AllocLength|BlockLimits)|ModeSense6\.Residuals|Sanitize\.Readonly) "

# suite_test PORTAL/TARGET/LUN SUITE...: each suite has the same outcomes over both transports.
suite_test() {
    local volume=$1 suite name
    shift
    for suite in "$@"; do
        suite_of "iscsi://$volume" "$suite" >/tmp/over-tcp
        suite_of "iser://$volume" "$suite" >/tmp/over-iser
        [ -s /tmp/over-tcp ] || bad "libiscsi $suite: no outcome over TCP"
        for name in $(grep -Eo "$SHORT_ANSWERS" /tmp/over-iser); do
            echo "@skip libiscsi $name over iSER: libiscsi ignores the residual count of an answer over iSER"
        done
        grep -Ev "$SHORT_ANSWERS" /tmp/over-tcp >/tmp/wanted
        grep -Ev "$SHORT_ANSWERS" /tmp/over-iser >/tmp/found
        equal "libiscsi $suite over iSER: $(wc -l </tmp/wanted) outcomes as over TCP" "" "$(diff /tmp/wanted /tmp/found)"
    done
}
# all_suites: the names of those with SCSI commands. The others change PDUs before they are sent over TCP, which libiscsi
# does not do over iSER.
all_suites() { iscsi-test-cu --list | grep -E '^SCSI\.[^.]*$'; }
