# A guest that is migrated to another emulator while it reads its disk, which another target serves there from the same
# file. Reads write to the guest's memory: a page that the target does not log is not migrated, and its checksum is wrong.
disk=/dev/vda
. /test/migrate.sh

echo "@move"
rounds=0
wrong=0
until moved || [ $rounds = 2000 ]; do
    [ "$(fresh_sum)" = "$written" ] || wrong=$((wrong + 1))
    $b dd if=/random of=$disk bs=1M seek=$((8 + rounds % 100)) count=1 2>/dev/null
    rounds=$((rounds + 1))
done
check "the guest is migrated" moved
check "all reads during the migration are right ($rounds rounds)" [ $wrong = 0 ]
check "pages that were read before are right" [ "$(sum)" = "$written" ]
check "the other target reads the same" [ "$(fresh_sum)" = "$written" ]
write_random
check "data written to the other target is read back" [ "$(fresh_sum)" = "$written" ]
exit $failed
