# A machine with systemd, and nothing of Lunar on it but the program: somebody follows the page, and then goes on.
. /test/lib.sh
. /test/initiator.sh
. /test/settings # DRIVER

HERE=/test/service
SECRET="what the page does not tell"
PORTAL=127.0.0.1:3260

# typed COMMAND: as somebody types it, who is asked for a secret perhaps.
typed() { printf '%s\n' "$SECRET" | sh -c "$1"; }

# wait_for_disk LUN: sets $disk.
wait_for_disk() {
    eventually disk_of "$1" || { bad "no disk with LUN $1"; return 1; }
    disk=$(disk_of "$1")
    eventually blockdev --getsize64 "$disk"
}

node() { iscsiadm -m node -T "$TARGET" -p "$PORTAL" "$@"; }

# with_secret SECRET
with_secret() {
    node -o update -n node.session.auth.authmethod -v CHAP &&
        node -o update -n node.session.auth.username -v alice &&
        node -o update -n node.session.auth.password -v "$1"
}

follow_the_page() {
    local line count=0 start=$SECONDS
    install -D -m 755 $HERE/lunar /usr/local/bin/lunar
    while IFS= read -r line <&3; do
        count=$((count + 1))
        try "command $count: $line" typed "$line" || { journalctl -u lunar --no-pager | tail -n 20; finish; }
    done 3<$HERE/commands
    echo "$count commands took $((SECONDS - start)) s"
    # What the page says is what the rest goes by.
    TARGET=$(sed -n 's/.*--iqn \([^ ]*\).*/\1/p' $HERE/commands)
    INITIATOR=$(sed -n 's/.*--initiators \([^ ]*\).*/\1/p' $HERE/commands | tr -d "'")
}

# What anybody may be told, and what that must have in it: who says nothing keeps no secret.
TOLD='status|no troubles
statistics|^commands
audit|disk1
history|who
history 2|alice
history 2 --text|disk1
user list|alice
user list --json|alice
user show alice|alice
user show alice --json|alice
api-token list|no api token
api-token list --json|\[\]
volume list|disk1
volume list --json|disk1
portal-group list|main
portal-group list --json|main
portal list|main
portal list --json|main
target list|main
target list --json|alice
group list|hosts
group list --json|disk1
api-listener list|no api listener
api-listener list --json|\[\]
session list|no sessions
session list --json|\[\]
config show|alice
config show --json|alice
diff /dev/null|alice'

# noted COMMAND...: what it says is in /tmp/told, too.
noted() {
    local status
    "$@" >/tmp/once 2>&1
    status=$?
    tee -a /tmp/told </tmp/once
    return $status
}

# Whatever anybody is told: of all of it nothing may be secret.
all_that_is_told() {
    local command pattern
    : >/tmp/told
    while IFS='|' read -r command pattern <&3; do
        # shellcheck disable=SC2086
        says "lunar $command" "$pattern" noted lunar $command
    done 3<<<"$TOLD"
    says "the journal" "lunar" noted journalctl --no-pager
    says "what the service was started with" "STATE_DIRECTORY|NOTIFY_SOCKET" \
        noted cat /proc/"$(systemctl show lunar -p MainPID --value)"/environ
    equal "no secret is in anything that is told" "" "$(grep -aF "$SECRET" /tmp/told)"
}

unit() {
    local shown
    says "the unit runs" "^active$" systemctl is-active lunar
    says "it has said that it is ready" "Type=notify" systemctl show lunar -p Type
    says "it is watched" "WatchdogUSec=30s" systemctl show lunar -p WatchdogUSec
    says "as a user of its own" "^lunar" ps -o user= -p "$(systemctl show lunar -p MainPID --value)"
    shown=$(systemd-analyze verify --man=no /usr/lib/systemd/system/lunar.service 2>&1 | grep -i lunar)
    equal "systemd finds nothing wrong with the unit" "" "$shown"
    try "and little that it could do" systemd-analyze security --offline=true --no-pager --threshold=20 \
        /usr/lib/systemd/system/lunar.service
    says "processes are seen" "lunar daemon" ps -eo args
    equal "nobody sees the secret among processes" "" "$(ps -eo args | grep -F "$SECRET" | grep -v grep)"
    all_that_is_told
    refuse "others do not read the configuration" setpriv --reuid=65534 --clear-groups cat /etc/lunar/lunar.toml
    refuse "others do not use the socket" setpriv --reuid=65534 --clear-groups lunar status
}

logs_in() {
    # The script has its own, with its own settings.
    systemctl stop iscsid.socket iscsid.service 2>/dev/null
    daemon 120
    # Its name is made of the pattern of the page.
    echo "InitiatorName=${INITIATOR//\*/guest}" >/etc/iscsi/initiatorname.iscsi
    pkill iscsid
    eventually sh -c "! pgrep iscsid"
    iscsid
    eventually iscsiadm -m iface
    says "discovery" "$TARGET" iscsiadm -m discovery -t sendtargets -p "$PORTAL"
    iscsiadm -m node -o delete >/dev/null 2>&1
    iscsiadm -m node -o new -T "$TARGET" -p "$PORTAL" >/dev/null
    refuse "without a proof nobody logs in" node --login
    with_secret "another secret" >/dev/null
    refuse "nor with a wrong one" node --login
    with_secret "$SECRET" >/dev/null
    try "with the secret the guest logs in" node --login
    wait_for_disk 0 || finish
    equal "the disk has its size" $((20 << 30)) "$(blockdev --getsize64 "$disk")"
    says "the operator sees who is there" "$(cat /etc/iscsi/initiatorname.iscsi | cut -d= -f2)" lunar session list
    head -c 4M /dev/urandom >/tmp/written
    try "the guest writes" dd if=/tmp/written of="$disk" bs=1M oflag=direct status=none
}

# still_there WHEN
still_there() {
    eventually dd if="$disk" of=/dev/null iflag=direct bs=4k count=1
    equal "what was written is there, $1" "$(sum </tmp/written)" "$(read_sum "$disk" count=4)"
    says "the volume is there, $1" "disk1" lunar volume list
    says "who may log in is there, $1" "alice" lunar target show main
}

restarts() {
    try "systemctl restart" systemctl restart lunar
    still_there "after a restart"
    try "systemctl kill -9" systemctl kill -s KILL lunar
    eventually lunar status
    still_there "after a kill -9"
    try "systemctl reload" systemctl reload lunar
    says "it runs on" "^active$" systemctl is-active lunar
    echo "volume = 7" >>/etc/lunar/lunar.toml
    refuse "systemctl reload with a mistake in the file" systemctl reload lunar
    says "which status tells of" "was changed by hand" lunar status
    still_there "with a mistake in the file"
    sed -i '$d' /etc/lunar/lunar.toml
    try "and without it" lunar apply
}

# told NODE PATTERN: one of the next few commands is told this.
told() {
    local count
    for count in 1 2 3 4 5; do sg_turs -v "$1" 2>&1; done | grep -Eq -- "$2"
}

# refused_by PATTERN COMMAND...: it fails, and says why.
refused_by() {
    local pattern=$1 said
    shift
    said=$("$@" 2>&1) && { echo "succeeded: $said"; return 1; }
    printf '%s\n' "$said" | grep -Eq -- "$pattern" || { echo "$said"; return 1; }
}

media() {
    local cd removable
    # Nobody but this script looks at media.
    echo 0 >/sys/module/block/parameters/events_dfl_poll_msecs
    systemctl stop systemd-udevd.service systemd-udevd-kernel.socket systemd-udevd-control.socket 2>/dev/null
    cp $HERE/disc.iso /srv/lunar/disc.iso
    chown lunar:lunar /srv/lunar/disc.iso
    try "a CD by the configuration" lunar volume create cd1 --kind file --path /srv/lunar/disc.iso --medium cd
    try "and a disk that can be taken out" \
        lunar volume create stick --kind file --path /srv/lunar/stick.img --size 64M --medium removable
    try "a CD has no size" refused_by "an image has its size" \
        lunar volume create cd2 --kind file --path /srv/lunar/x.iso --medium cd --size 1G
    try "lunar group map, the CD" lunar group map hosts 1 cd1
    try "lunar group map, the disk" lunar group map hosts 2 stick
    try "the initiator looks again" iscsiadm -m session --rescan
    wait_for_disk 1 || return
    cd=$disk
    wait_for_disk 2 || return
    removable=$disk
    wait_for_disk 0
    equal "the kernel takes it for a CD drive" "/dev/sr0" "$cd"
    equal "and the other for a removable disk" 1 "$(cat "/sys/block/${removable##*/}/removable")"
    try "the disc is read" mount -t iso9660 -o ro "$cd" /mnt
    equal "its file" "$(cat $HERE/disc.sum)" "$(sum </mnt/random)"
    says "lunar volume medium: locked by who has mounted it" "locked" lunar volume medium cd1
    try "lunar volume eject is refused" refused_by "has locked it" lunar volume eject cd1
    umount /mnt
    try "lunar volume eject" lunar volume eject cd1
    says "lunar volume medium: out" "is ejected" lunar volume medium cd1
    try "no medium: sense 3Ah" told "$(sg_of "$cd")" "[Mm]edium not present"
    says "lunar volume load" "is loaded" lunar volume load cd1
    try "a unit attention: 28h/00h" told "$(sg_of "$cd")" "may have changed"
    try "the disc is read again" mount -t iso9660 -o ro "$cd" /mnt
    equal "its file, again" "$(cat $HERE/disc.sum)" "$(sum </mnt/random)"
    umount /mnt
    try "sg_prevent" sg_prevent "$(sg_of "$removable")"
    try "PREVENT ALLOW MEDIUM REMOVAL holds" refused_by "has locked it" lunar volume eject stick
    try "unless it is forced" lunar volume eject stick --force
    try "no medium in the other: sense 3Ah" told "$(sg_of "$removable")" "[Mm]edium not present"
    try "and in again" lunar volume load stick
    eventually sg_turs "$(sg_of "$removable")"
    try "the initiator lets go of it" sg_prevent --allow "$(sg_of "$removable")"
    try "a fixed disk stays where it is" refused_by "fixed disk" lunar volume eject disk1
    says "the audit log has it" "volume stick was ejected" lunar audit
    eventually sg_turs "$(sg_of "$removable")"
    try "the initiator ejects" sg_start --eject "$(sg_of "$removable")"
    says "the operator sees it" "is ejected" lunar volume medium stick
    says "and loads it" "is loaded" lunar volume load stick
}

# A process that stands still is started again by whoever watches it.
watched() {
    local before
    before=$(systemctl show lunar -p NRestarts --value)
    kill -STOP "$(systemctl show lunar -p MainPID --value)"
    eventually sh -c "[ \$(systemctl show lunar -p NRestarts --value) != $before ]"
    says "who stands still is started again" "[1-9]" systemctl show lunar -p NRestarts --value
    eventually lunar status
    still_there "after that"
}

# The guest under a second name sees what is that name's.
two_names() {
    local found
    try "a volume for others" lunar volume create scratch --kind ram --size 16M
    try "a group of others" lunar group create others --targets main --initiators "iqn.2026-01.io.lunar.conform:other"
    try "lunar group map, others" lunar group map others 0 scratch
    try "lunar group map, others, read-only" lunar group map others 5 disk1 --read-only
    initiator other
    iscsiadm -m node -o new -T "$TARGET" -p "$PORTAL" -I other >/dev/null
    with_secret "$SECRET" >/dev/null
    try "the guest logs in by another name" node -I other --login
    try "which sees a unit of its own" eventually disk_at other 1 0
    try "and one that is shared" eventually disk_at other 1 5
    found=$(disk_at other 1 0)
    eventually blockdev --getsize64 "$found"
    equal "unit 0 is the volume of others" $((16 << 20)) "$(blockdev --getsize64 "$found")"
    equal "unit 5 is only read" 1 "$(blockdev --getro "$(disk_at other 1 5)")"
    refuse "the other name sees no unit that is not its own" disk_at other 1 1
    equal "unit 0 is what it was by the first name" $((20 << 30)) "$(blockdev --getsize64 "$(disk_at default 1 0)")"
    refuse "the first name sees no unit of others" disk_at default 1 5
    try "the other name logs out" node -I other --logout
}

follow_the_page
unit
logs_in
restarts
media
two_names
watched
try "the guest logs out" node --logout
try "systemctl stop" systemctl stop lunar
equal "it ended well" "success" "$(systemctl show lunar -p Result --value)"
finish
