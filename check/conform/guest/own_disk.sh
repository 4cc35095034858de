# Sourced: a disk of this machine, which ublk serves. It is in $disk, and its data in $IMAGE.

attribute() { cat "/sys/block/${disk##*/}/queue/$1"; }
gone() { ! test -b "$disk"; }
write_one() { dd if=/dev/zero of="$disk" bs=4k count=1 oflag=direct status=none; }
# disk_properties BYTES QUEUES
disk_properties() {
    equal "its size" "$1" "$(blockdev --getsize64 "$disk")"
    equal "its logical blocks" 512 "$(attribute logical_block_size)"
    equal "its write cache" "write back" "$(attribute write_cache)"
    equal "it has FUA" 1 "$(attribute fua)"
    [ "$(attribute discard_max_bytes)" -gt 0 ] && ok "it discards" || bad "it discards"
    [ "$(attribute write_zeroes_max_bytes)" -gt 0 ] && ok "it writes zeroes" || bad "it writes zeroes"
    equal "its queues" "$2" "$(ls "/sys/block/${disk##*/}/mq" | wc -l)"
}
# disk_data: /tmp/random has what the first 4 MiB had before the discards.
disk_data() {
    try "fio, 4 KiB, 16 deep" fio --name=load --filename="$disk" --ioengine=io_uring --direct=1 --rw=randwrite --bs=4k \
        --iodepth=16 --size=8M --verify=crc32c --verify_fatal=1 --randseed=3 --output-format=terse
    try "fio, 1 MiB, 4 deep, longer than a request may be" fio --name=load --filename="$disk" --ioengine=io_uring \
        --direct=1 --rw=write --bs=1M --iodepth=4 --size=16M --verify=crc32c --verify_fatal=1 --output-format=terse
    try "fio, synchronous writes (FUA)" fio --name=load --filename="$disk" --ioengine=psync --direct=1 --sync=1 \
        --rw=randwrite --bs=4k --size=256k --verify=crc32c --verify_fatal=1 --output-format=terse
    head -c 4M /dev/urandom >/tmp/random
    try "write 4 MiB" dd if=/tmp/random of="$disk" bs=1M oflag=direct status=none
    equal "the image has them" "$(sum </tmp/random)" "$(head -c 4M "$IMAGE" | sum)"
    try "discard 2 MiB" blkdiscard -o 0 -l 2M "$disk"
    equal "they read as zeroes" "$(head -c 2M /dev/zero | sum)" "$(read_sum "$disk" count=2)"
    equal "the rest is there" "$(tail -c 2M /tmp/random | sum)" "$(read_sum "$disk" skip=2 count=2)"
    try "write zeroes" blkdiscard -z -o 2M -l 1M "$disk"
    equal "they are zeroes" "$(head -c 1M /dev/zero | sum)" "$(read_sum "$disk" skip=2 count=1)"
}
