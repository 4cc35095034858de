# A virtual tape library that the program lunar-tape serves: a changer and two drives, over iSCSI. The changer is used
# with mtx, the drives with mt, tar and dd; the program is killed under a write.
. /test/lib.sh
. /test/initiator.sh
. /test/settings # DRIVER KILLS

. /test/tape-target.sh

changer_cases() {
    says "mtx inquiry" "Vendor ID: 'LUNAR" mtx -f "$changer" inquiry
    says "mtx status: elements" "2 Drives, 7 Slots \( 1 Import/Export \)" status
    says "mtx status: bar codes" "Storage Element 1:Full :VolumeTag=LUN001L8" status
    says "mtx status: a port" "Storage Element 7 IMPORT/EXPORT:Empty" status
    try "mtx inventory" mtx -f "$changer" inventory
    try "mtx load" mtx -f "$changer" load 1 0
    says "the cartridge is in the drive" "Data Transfer Element 0:Full \(Storage Element 1 Loaded\):VolumeTag = LUN001L8" status
    refuse "mtx load of an empty slot" mtx -f "$changer" load 6 1
    refuse "mtx load into a full drive" mtx -f "$changer" load 2 0
    try "mtx transfer" mtx -f "$changer" transfer 2 5
    says "the cartridge is in another slot" "Storage Element 5:Full :VolumeTag=LUN002L8" status
    try "mtx transfer to the port" mtx -f "$changer" transfer 4 7
    says "lunar-tape list: the port" "port 1 +LUN004L8" tape list $LIBRARY
    try "lunar-tape eject" tape eject $LIBRARY LUN004L8
    says "the port is empty" "Storage Element 7 IMPORT/EXPORT:Empty" status
    try "lunar-tape add" tape add $LIBRARY NEW001L8 --capacity 33M
    try "lunar-tape insert" tape insert $LIBRARY NEW001L8
    says "the new cartridge is in the port" "IMPORT/EXPORT:Full :VolumeTag=NEW001L8" status
    try "mtx transfer from the port" mtx -f "$changer" transfer 7 4
}

identity_cases() {
    says "the drive is a tape" "tape" lsscsi
    says "INQUIRY of a drive" "VIRTUAL LTO-8" sg_inq "$first"
    try "READ BLOCK LIMITS" sg_raw -r 6 "$first" 05 00 00 00 00 00
    says "TapeAlert" "[Rr]ead failure: 0|Read Failure|TapeAlert|Tape alert" sg_logs -p 0x2e "$first"
    says "supported commands" "[Ww]rite filemarks" sg_opcodes "$first"
    says "attributes of the medium" "LUN001L8" sg_read_attr "$first"
}

tree() { (cd "$1" && find . -type f | sort | xargs sha256sum | sum); }

tar_cases() {
    local wanted
    mkdir -p /tmp/tree /tmp/out
    cp -r /etc/. /tmp/tree/ 2>/dev/null
    head -c 3M /dev/urandom >/tmp/tree/random
    wanted=$(tree /tmp/tree)
    try "mt status" eventually is_online "$first"
    try "mt rewind" mt-st -f "$first" rewind
    try "tar writes a file" tar -b 64 -C /tmp/tree -cf "$first" .
    try "and another one" tar -b 512 -C /test -cf "$first" lib.sh
    says "two files are before the position" "[Ff]ile number=2" mt-st -f "$first" status
    try "mt rewind after the writes" mt-st -f "$first" rewind
    try "tar reads the first one" tar -b 64 -C /tmp/out -xf "$first"
    equal "the tree is the same" "$wanted" "$(tree /tmp/out)"
    try "mt rewind for the second one" mt-st -f "$first" rewind
    try "mt fsf" mt-st -f "$first" fsf 1
    says "tar lists the second one" "lib.sh" tar -b 512 -tf "$first"
    try "mt bsfm to the second file" mt-st -f "$first" asf 1
    says "tar lists it again" "lib.sh" tar -b 512 -tf "$first"
    try "mt eod" mt-st -f "$first" eod
    says "mt tell" "block [0-9]+" mt-st -f "$first" tell
    try "mt seek 0" mt-st -f "$first" seek 0
    says "the beginning" "BOT" mt-st -f "$first" status
    rm -rf /tmp/out
}

# written DRIVE BLOCK COUNT: writes random blocks from the beginning, reads them back, and compares.
written() {
    head -c $(($2 * $3)) /dev/urandom >/tmp/blocks
    mt-st -f "$1" rewind && dd if=/tmp/blocks of="$1" bs="$2" iflag=fullblock status=none && mt-st -f "$1" rewind &&
        [ "$(sum </tmp/blocks)" = "$(dd if="$1" bs="$2" status=none | sum)" ]
}
block_cases() {
    local size
    for size in 512 10240 65536 262144 1048576; do
        try "blocks of $size bytes" written "$first" $size $((size < 262144 ? 40 : 8))
    done
    try "a fixed length of 4096 bytes" mt-st -f "$first" setblk 4096
    try "writes of ten blocks each" written "$first" 40960 10
    says "mt status: the length" "block size 4096 bytes" mt-st -f "$first" status
    try "blocks of any length again" mt-st -f "$first" setblk 0
    mt-st -f "$first" rewind
    refuse "a block that is longer than the read" dd if="$first" of=/dev/null bs=1024 count=1 status=none
    try "compression" mt-st -f "$first" compression 1
    try "compressed blocks" sh -c "mt-st -f $first rewind && dd if=/dev/zero of=$first bs=256K count=400 status=none"
    equal "100 MiB of zeroes fit a cartridge of 48 MiB" $((400 * 262144)) \
        "$(mt-st -f "$first" rewind && dd if="$first" bs=256K status=none | wc -c)"
    try "no compression" mt-st -f "$first" compression 0
    try "mt erase" sh -c "mt-st -f $first rewind && mt-st -f $first erase"
    equal "nothing can be read" 0 "$(mt-st -f "$first" rewind && dd if="$first" bs=256K status=none 2>/dev/null | wc -c)"
}

full_cases() {
    local count
    mtx -f "$changer" load 4 1
    try "the new cartridge is ready" eventually is_online "$second"
    mt-st -f "$second" rewind
    says "a full cartridge ends a write" "No space left" \
        sh -c "dd if=/dev/zero of=$second bs=256K count=200 2>&1; true"
    mt-st -f "$second" rewind
    count=$(dd if="$second" bs=256K 2>/dev/null | wc -c)
    if [ "$count" -gt $((30 << 20)) ]; then ok "its data is read back"; else bad "its data is read back: $count"; fi
    try "mtx unload" mtx -f "$changer" unload 4 1
    try "lunar-tape protect" tape protect $LIBRARY NEW001L8
    mtx -f "$changer" load 4 1
    try "the protected cartridge is ready" eventually is_online "$second"
    says "mt status: write protection" "WR_PROT" mt-st -f "$second" status
    refuse "it is not written" dd if=/dev/zero of="$second" bs=256K count=1 status=none
    try "it is unloaded" mtx -f "$changer" unload 4 1
}

both_cases() {
    local one two
    mtx -f "$changer" load 5 1
    try "a cartridge in the second drive" eventually is_online "$second"
    head -c 8M /dev/urandom >/tmp/one
    head -c 8M /dev/urandom >/tmp/two
    mt-st -f "$first" rewind && mt-st -f "$second" rewind
    dd if=/tmp/one of="$first" bs=64K status=none & one=$!
    dd if=/tmp/two of="$second" bs=64K status=none & two=$!
    wait $one && wait $two && ok "both drives write at once" || bad "both drives write at once"
    mt-st -f "$first" rewind && mt-st -f "$second" rewind
    equal "the first has its data" "$(sum </tmp/one)" "$(dd if="$first" bs=64K status=none | sum)"
    equal "the second has its data" "$(sum </tmp/two)" "$(dd if="$second" bs=64K status=none | sum)"
    try "the second drive is emptied" mtx -f "$changer" unload 5 1
}

# rewound DRIVE: the drive works, also after a unit attention condition.
rewound() { mt-st -f "$1" rewind; }
kill_cases() {
    local round load wanted
    for round in $(seq "$KILLS"); do
        head -c 4M /dev/urandom >/tmp/kept
        wanted=$(sum </tmp/kept)
        eventually rewound "$first"
        try "$round: a file with a filemark" dd if=/tmp/kept of="$first" bs=256K status=none
        # The filemark of the close was synchronized, so the file survives. Errors of the next one are the point.
        dd if=/dev/urandom of="$first" bs=64K count=500 status=none >/dev/null 2>&1 &
        load=$!
        nap 0.5
        kill -9 $library
        wait $library 2>/dev/null
        start_library
        wait $load
        try "$round: the drive works after kill -9" eventually rewound "$first"
        equal "$round: the file is there" "$wanted" "$(dd if="$first" bs=256K status=none | sum)"
        says "$round: the cartridge is in the drive" "Element 0:Full.*LUN001L8" eventually_status
    done
}
eventually_status() { eventually status && status; }

serve_library --slots 6 --ports 1 --cartridges 4 --capacity 48M
says "lunar-tape list" "slot 4 +LUN004L8" tape list $LIBRARY
changer_cases
identity_cases
tar_cases
block_cases
full_cases
both_cases
kill_cases
try "mtx unload of the last cartridge" mtx -f "$changer" unload 1 0
end_library
says "the places are kept" "slot 5 +LUN002L8" tape list $LIBRARY
finish
