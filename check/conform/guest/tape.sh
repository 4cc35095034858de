# Sourced by iscsi.sh: a tape drive, which the target forwards commands to.

# generic_of LUN: the sg device of a logical unit of a session, once the kernel has created it.
generic_of() {
    local found
    for found in /sys/class/iscsi_session/session*/device/target*/*:*:*:"$1"/scsi_generic/sg*; do
        [ -c "/dev/${found##*/}" ] && { echo "/dev/${found##*/}"; return 0; }
    done
    return 1
}

tape_drive() {
    local tape
    eventually generic_of 0 || { iscsiadm -m session -P 3; bad "the kernel finds the tape drive"; return; }
    tape=$(generic_of 0)
    says "the kernel finds a tape drive" "^\[.*tape" lsscsi
    says "sg_inq reports a tape drive" "tape" sg_inq "$tape"
    says "sg_inq reports the vendor of the device" "Vendor identification: EXAMPLE" sg_inq "$tape"
    try "sg_turs of a tape drive" sg_turs -n 5 "$tape"
    says "sg_vpd: designators of a tape drive" "NAA|EUI-64|T10" sg_vpd -p di "$tape"
    head -c 4096 /dev/urandom >/tmp/block
    # WRITE(6), REWIND and READ(6) of a variable block of 4096 bytes.
    try "a tape drive is written" sg_raw -s 4096 -i /tmp/block "$tape" 0a 00 00 10 00 00
    try "a tape is rewound" sg_raw "$tape" 01 00 00 00 00 00
    try "a tape drive is read" sg_raw -r 4096 -o /tmp/found "$tape" 08 00 00 10 00 00
    equal "the block on the tape" "$(sum </tmp/block)" "$(sum </tmp/found)"
    refuse "a tape drive refuses READ(10)" sg_raw -r 512 "$tape" 28 00 00 00 00 00 00 00 01 00
}
