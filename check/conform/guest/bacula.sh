# Bacula with a virtual tape library over iSCSI: its autochanger labels the cartridges by their bar codes, writes a tree
# that needs several of them, verifies it, and restores it.
. /test/lib.sh
. /test/initiator.sh
. /test/settings # DRIVER
. /test/tape-target.sh

WORK=/tmp/bacula
TREE=/tmp/tree
RESTORED=/tmp/restored
# How long a job may take, in seconds: the guest may be emulated.
JOB_LIMIT=1500

serve_library --slots 6 --ports 1 --cartridges 4 --capacity 33M
mkdir -p $WORK $TREE $RESTORED
head -c 40M /dev/urandom >$TREE/random
cp -r /etc/. $TREE/ 2>/dev/null
ln -s random $TREE/link
# The scripts of Bacula call the tools by their usual names.
ln -sf mt-st /usr/bin/mt
[ -e /usr/bin/awk ] || ln -s /busybox/awk /usr/bin/awk

# The catalogue. No package's installation script has run.
catalogue() {
    local schema=/usr/share/bacula-director/make_sqlite3_tables
    if [ -e $schema ]; then
        mkdir -p /var/lib/bacula
        db_name=bacula sh $schema >/dev/null && mv /var/lib/bacula/bacula.db $WORK/
    else
        sqlite3 $WORK/bacula.db </usr/share/dbconfig-common/data/bacula-director-sqlite3/install/sqlite3
    fi
}
try "the catalogue" catalogue

cat >$WORK/dir.conf <<END
Director { Name = d; DIRport = 19201; QueryFile = "/etc/bacula/scripts/query.sql"; WorkingDirectory = "$WORK"
  PidDirectory = "$WORK"; Password = "p"; Messages = M; DirAddress = 127.0.0.1; Maximum Concurrent Jobs = 2 }
Job { Name = Backup; Type = Backup; Level = Full; Client = f; FileSet = S; Storage = st; Pool = P; Messages = M }
Job { Name = Verify; Type = Verify; Level = VolumeToCatalog; Client = f; FileSet = S; Storage = st; Pool = P
  Messages = M; Verify Job = Backup }
Job { Name = Restore; Type = Restore; Client = f; FileSet = S; Storage = st; Pool = P; Messages = M
  Where = $RESTORED }
FileSet { Name = S; Include { Options { signature = SHA1 }
  File = $TREE } }
Client { Name = f; Address = 127.0.0.1; FDPort = 19202; Catalog = C; Password = "p" }
Storage { Name = st; Address = 127.0.0.1; SDPort = 19203; Password = "p"; Device = A; Media Type = LTO
  Autochanger = yes }
Catalog { Name = C; dbname = "bacula"; dbuser = ""; dbpassword = "" }
Pool { Name = P; Pool Type = Backup; Recycle = no }
Messages { Name = M; append = "$WORK/log" = all }
END
cat >$WORK/sd.conf <<END
Storage { Name = sd; SDPort = 19203; WorkingDirectory = "$WORK"; PidDirectory = "$WORK"; SDAddress = 127.0.0.1 }
Director { Name = d; Password = "p" }
Autochanger { Name = A; Device = F; Changer Device = $changer
  Changer Command = "/etc/bacula/scripts/mtx-changer %c %o %S %a %d" }
Device { Name = F; Archive Device = $first; Media Type = LTO; Device Type = Tape; LabelMedia = yes
  Random Access = no; AutomaticMount = yes; RemovableMedia = yes; AlwaysOpen = yes; Autochanger = yes
  Drive Index = 0; Maximum Block Size = 262144
  # Behind a size, Bacula takes the next word of the line for its unit.
}
Messages { Name = M; director = d = all }
END
cat >$WORK/fd.conf <<END
FileDaemon { Name = f; FDport = 19202; WorkingDirectory = "$WORK"; Pid Directory = "$WORK"; FDAddress = 127.0.0.1 }
Director { Name = d; Password = "p" }
Messages { Name = M; director = d = all }
END
cat >$WORK/con.conf <<END
Director { Name = d; DIRport = 19201; address = 127.0.0.1; Password = "p" }
END

pids=
for part in sd fd dir; do
    try "bacula-$part accepts its configuration" bacula-$part -t -c $WORK/$part.conf
    bacula-$part -f -c $WORK/$part.conf >$WORK/$part.out 2>&1 &
    pids="$pids $!"
done

# console LINE...: the answer of the director to these lines.
console() { printf '%s\n' "$@" quit | timeout $JOB_LIMIT bconsole -c $WORK/con.conf; }
# job NAME END LINE: a case that passes if the job of this line ends with these words in the log.
job() {
    local name=$1 words=$2
    : >$WORK/log
    console "$3" wait messages >$WORK/said 2>&1
    if grep -Eq "Termination: +$words\$" $WORK/log; then
        ok "$name"
    else
        tail -n 25 $WORK/log $WORK/said $WORK/sd.out
        bad "$name"
    fi
}

try "the director answers" eventually console version
says "mtx-changer lists the slots" "^1:LUN001L8" /etc/bacula/scripts/mtx-changer "$changer" list 0 "$first" 0
console "label barcodes storage=st pool=P slots=1-4 drive=0" yes messages >$WORK/labelled 2>&1
for number in 1 2 3 4; do
    says "the cartridge of slot $number has its label" "LUN00${number}L8.*(success|in Slot|Slot $number)" cat $WORK/labelled
done
job "a backup of the tree" "Backup OK" "run job=Backup yes"
says "it needed more than one cartridge" "Volume name\(s\): +LUN.*\|LUN" cat $WORK/log
job "its verification" "Verify OK" "run job=Verify yes"
job "its restoration" "Restore OK" "restore client=f restorejob=Restore where=$RESTORED current select all done yes"
tree() { (cd "$1" && find . -type f | sort | xargs sha256sum | sum); }
equal "the tree is the same" "$(tree $TREE)" "$(tree $RESTORED$TREE)"
equal "a link, too" random "$(readlink $RESTORED$TREE/link)"
console "unmount storage=st drive=0" "release storage=st drive=0" >/dev/null 2>&1
# shellcheck disable=SC2086 # several processes
kill $pids
wait $pids
end_library
finish
