# A machine with systemd and the program: runs the commands of docs/five-minutes.md, then tests the installed service.
. /test/lib.sh
. /test/initiator.sh
. /test/settings # DRIVER, perhaps LOCAL_DISK

HERE=/test/service
SECRET="a secret that no page names"
PORTAL=127.0.0.1:3260

# run_command COMMAND: runs a command of the page; it reads the secret from its input if it asks for one.
run_command() { printf '%s\n' "$SECRET" | sh -c "$1"; }

# wait_for_disk LUN: sets $disk.
wait_for_disk() {
    eventually disk_of "$1" || { bad "no disk with LUN $1"; return 1; }
    disk=$(disk_of "$1")
    eventually blockdev --getsize64 "$disk"
}

node() { iscsiadm -m node -T "$TARGET" -p "$PORTAL" "$@"; }

# with_secret SECRET: sets the node's CHAP secret.
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
        try "command $count: $line" run_command "$line" || { journalctl -u lunar --no-pager | tail -n 20; finish; }
    done 3<$HERE/commands
    echo "$count commands took $((SECONDS - start)) s"
    # The rest uses the names of the page.
    TARGET=$(sed -n 's/.*--iqn \([^ ]*\).*/\1/p' $HERE/commands)
    INITIATOR=$(sed -n 's/.*--initiators \([^ ]*\).*/\1/p' $HERE/commands | tr -d "'")
}

# Commands whose output must not have the secret, and a pattern that it must have, so that an empty output does not
# pass. The volume of 20 GiB is larger than the disk of this guest.
COMMANDS='status|may take 20 GiB more
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

# record COMMAND...: adds the command's output to /tmp/output.
record() {
    local status
    "$@" >/tmp/once 2>&1
    status=$?
    tee -a /tmp/output </tmp/once
    return $status
}

# Neither the output of these commands nor the journal nor the environment of the service may have the secret.
secrets_in_output() {
    local command pattern
    : >/tmp/output
    while IFS='|' read -r command pattern <&3; do
        # shellcheck disable=SC2086
        says "lunar $command" "$pattern" record lunar $command
    done 3<<<"$COMMANDS"
    says "the journal" "lunar" record journalctl --no-pager
    says "the environment of the service" "STATE_DIRECTORY|NOTIFY_SOCKET" \
        record cat /proc/"$(systemctl show lunar -p MainPID --value)"/environ
    equal "no output has the secret" "" "$(grep -aF "$SECRET" /tmp/output)"
}

unit_test() {
    local shown
    says "the unit is active" "^active$" systemctl is-active lunar
    says "the unit notifies its readiness" "Type=notify" systemctl show lunar -p Type
    says "the unit has a watchdog" "WatchdogUSec=30s" systemctl show lunar -p WatchdogUSec
    says "it runs as the user lunar" "^lunar" ps -o user= -p "$(systemctl show lunar -p MainPID --value)"
    shown=$(systemd-analyze verify --man=no /usr/lib/systemd/system/lunar.service 2>&1 | grep -i lunar)
    equal "systemd-analyze verify finds no errors" "" "$shown"
    try "systemd-analyze security is below the threshold" systemd-analyze security --offline=true --no-pager --threshold=20 \
        /usr/lib/systemd/system/lunar.service
    says "ps lists the daemon" "lunar daemon" ps -eo args
    equal "ps does not show the secret" "" "$(ps -eo args | grep -F "$SECRET" | grep -v grep)"
    secrets_in_output
    refuse "other users cannot read the configuration" setpriv --reuid=65534 --clear-groups cat /etc/lunar/lunar.toml
    refuse "other users cannot use the socket" setpriv --reuid=65534 --clear-groups lunar status
}

initiator_test() {
    # The script starts its own iscsid, with its own settings.
    systemctl stop iscsid.socket iscsid.service 2>/dev/null
    daemon 120
    # The initiator's name matches the pattern of the page.
    echo "InitiatorName=${INITIATOR//\*/guest}" >/etc/iscsi/initiatorname.iscsi
    pkill iscsid
    eventually sh -c "! pgrep iscsid"
    iscsid
    eventually iscsiadm -m iface
    says "discovery" "$TARGET" iscsiadm -m discovery -t sendtargets -p "$PORTAL"
    iscsiadm -m node -o delete >/dev/null 2>&1
    iscsiadm -m node -o new -T "$TARGET" -p "$PORTAL" >/dev/null
    refuse "login without CHAP" node --login
    with_secret "another secret" >/dev/null
    refuse "login with a wrong secret" node --login
    with_secret "$SECRET" >/dev/null
    try "login with the secret" node --login
    wait_for_disk 0 || finish
    equal "the disk has its size" $((20 << 30)) "$(blockdev --getsize64 "$disk")"
    says "lunar session list has the initiator" "$(cat /etc/iscsi/initiatorname.iscsi | cut -d= -f2)" lunar session list
    head -c 4M /dev/urandom >/tmp/written
    try "write to the disk" dd if=/tmp/written of="$disk" bs=1M oflag=direct status=none
}

# still_there WHEN: the data on the disk and the configuration are intact.
still_there() {
    eventually dd if="$disk" of=/dev/null iflag=direct bs=4k count=1
    equal "the data is intact, $1" "$(sum </tmp/written)" "$(read_sum "$disk" count=4)"
    says "the volume is configured, $1" "disk1" lunar volume list
    says "the target's user is configured, $1" "alice" lunar target show main
}

restart_test() {
    try "systemctl restart" systemctl restart lunar
    still_there "after a restart"
    try "systemctl kill -9" systemctl kill -s KILL lunar
    eventually lunar status
    still_there "after a kill -9"
    try "systemctl reload" systemctl reload lunar
    says "the unit stays active" "^active$" systemctl is-active lunar
    echo "volume = 7" >>/etc/lunar/lunar.toml
    refuse "systemctl reload with an invalid file" systemctl reload lunar
    says "lunar status reports the invalid file" "was edited" lunar status
    still_there "with an invalid file"
    sed -i '$d' /etc/lunar/lunar.toml
    try "lunar apply after the correction" lunar apply
}

# kills_and_restarts: the local disk $1 survives the ends of its process and of the daemon.
kills_and_restarts() {
    try "systemctl kill -9 of the local disk" systemctl kill -s KILL lunar-ublk@local
    eventually systemctl is-active lunar-ublk@local >/dev/null
    says "systemd starts it again" "^active$" systemctl is-active lunar-ublk@local
    equal "its data after a kill" "$(sum </tmp/written)" "$(head -c 4M "$1" | sum)"
    try "systemctl restart of the daemon" systemctl restart lunar
    try "a write meanwhile" dd if=/tmp/written of="$1" bs=1M seek=4 oflag=direct status=none
    equal "its data after a restart of the daemon" "$(sum </tmp/written)" \
        "$(dd if="$1" bs=1M skip=4 count=4 iflag=direct status=none | sum)"
}

# A local disk of the template that was installed, with the rules for udev: with capabilities, and without any.
local_disk_test() {
    local node link=/run/lunar-ublk/local folder=/etc/systemd/system/lunar-ublk@local.service.d
    [ -e /dev/ublk-control ] || { echo "@skip a local disk: the kernel has no ublk"; return; }
    try "udevadm control --reload" udevadm control --reload
    try "udevadm trigger" udevadm trigger --settle /dev/ublk-control
    equal "the group lunar may make disks" "lunar 660" "$(stat -c '%G %a' /dev/ublk-control)"
    try "lunar volume create, for the local disk" \
        lunar volume create local --kind file --path /srv/lunar/local.img --size 64M
    try "lunar group create, for the local disk" \
        lunar group create local --targets main --initiators iqn.2026-01.io.lunar:vm:local
    try "lunar group map, for the local disk" lunar group map local 0 local
    printf '[vhost.local]\ntarget = "main"\nmode = "660"\n' >>/etc/lunar/lunar.toml
    try "lunar apply, a socket for the local disk" lunar apply
    try "systemctl start lunar-ublk@local" systemctl start lunar-ublk@local
    eventually test -b $link || { journalctl -u lunar-ublk@local --no-pager | tail -n 20; bad "the link"; return; }
    equal "the local disk has its size" $((64 << 20)) "$(blockdev --getsize64 $link)"
    equal "the local disk belongs to root" root "$(stat -L -c %U $link)"
    try "write to the local disk" dd if=/tmp/written of=$link bs=1M oflag=direct status=none
    kills_and_restarts $link
    try "systemctl stop lunar-ublk@local" systemctl stop lunar-ublk@local
    refuse "the link is gone" test -L $link

    mkdir -p $folder
    printf '[Service]\nCapabilityBoundingSet=\nAmbientCapabilities=\n' >$folder/plain.conf
    systemctl daemon-reload
    try "start it without capabilities" systemctl start lunar-ublk@local
    eventually test -b $link || { journalctl -u lunar-ublk@local --no-pager | tail -n 20; bad "the link"; return; }
    node=$(readlink -f $link)
    says "it has no capabilities" "^CapEff:[[:space:]]*0*$" \
        cat "/proc/$(systemctl show lunar-ublk@local -p MainPID --value)/status"
    given() { [ "$(stat -c '%U %a' "$node")" = "lunar 600" ]; }
    try "udev gives the disk to its user" eventually given
    equal "it has the data" "$(sum </tmp/written)" "$(head -c 4M "$node" | sum)"
    refuse "other users cannot read the disk" setpriv --reuid=65534 --clear-groups head -c 4k "$node"
    try "systemctl stop" systemctl stop lunar-ublk@local
    refuse "the disk is gone" test -b "$node"
}

# reports NODE PATTERN: whether one of the next commands ends with this sense.
reports() {
    local count
    for count in 1 2 3 4 5; do sg_turs -v "$1" 2>&1; done | grep -Eq -- "$2"
}

# refused_by PATTERN COMMAND...: the command must fail with a message that matches.
refused_by() {
    local pattern=$1 output
    shift
    output=$("$@" 2>&1) && { echo "succeeded: $output"; return 1; }
    printf '%s\n' "$output" | grep -Eq -- "$pattern" || { echo "$output"; return 1; }
}

media_test() {
    local cd removable
    # Stop the kernel's and udev's polling of media.
    echo 0 >/sys/module/block/parameters/events_dfl_poll_msecs
    systemctl stop systemd-udevd.service systemd-udevd-kernel.socket systemd-udevd-control.socket 2>/dev/null
    cp $HERE/disc.iso /srv/lunar/disc.iso
    chown lunar:lunar /srv/lunar/disc.iso
    try "lunar volume create, a CD" lunar volume create cd1 --kind file --path /srv/lunar/disc.iso --medium cd
    try "lunar volume create, a removable disk" \
        lunar volume create stick --kind file --path /srv/lunar/stick.img --size 64M --medium removable
    try "lunar volume create, a CD with a size is refused" refused_by "an image has its own size" \
        lunar volume create cd2 --kind file --path /srv/lunar/x.iso --medium cd --size 1G
    try "lunar group map, the CD" lunar group map hosts 1 cd1
    try "lunar group map, the disk" lunar group map hosts 2 stick
    try "the initiator rescans" iscsiadm -m session --rescan
    wait_for_disk 1 || return
    cd=$disk
    wait_for_disk 2 || return
    removable=$disk
    wait_for_disk 0
    equal "the kernel finds a CD drive" "/dev/sr0" "$cd"
    equal "the kernel finds a removable disk" 1 "$(cat "/sys/block/${removable##*/}/removable")"
    try "mount the disc" mount -t iso9660 -o ro "$cd" /mnt
    equal "the file on the disc" "$(cat $HERE/disc.sum)" "$(sum </mnt/random)"
    says "lunar volume medium: a mounted disc is locked" "locked" lunar volume medium cd1
    try "lunar volume eject of a locked medium is refused" refused_by "prevents its removal" lunar volume eject cd1
    umount /mnt
    try "lunar volume eject" lunar volume eject cd1
    says "lunar volume medium: ejected" "is ejected" lunar volume medium cd1
    try "no medium: sense 3Ah" reports "$(sg_of "$cd")" "[Mm]edium not present"
    says "lunar volume load" "is loaded" lunar volume load cd1
    try "a unit attention: 28h/00h" reports "$(sg_of "$cd")" "may have changed"
    try "mount the disc again" mount -t iso9660 -o ro "$cd" /mnt
    equal "the file on the disc after load" "$(cat $HERE/disc.sum)" "$(sum </mnt/random)"
    umount /mnt
    try "sg_prevent" sg_prevent "$(sg_of "$removable")"
    try "lunar volume eject is refused after PREVENT ALLOW MEDIUM REMOVAL" refused_by "prevents its removal" lunar volume eject stick
    try "lunar volume eject --force" lunar volume eject stick --force
    try "no medium in the removable disk: sense 3Ah" reports "$(sg_of "$removable")" "[Mm]edium not present"
    try "lunar volume load, the removable disk" lunar volume load stick
    eventually sg_turs "$(sg_of "$removable")"
    try "sg_prevent --allow" sg_prevent --allow "$(sg_of "$removable")"
    try "lunar volume eject of a fixed disk is refused" refused_by "fixed disk" lunar volume eject disk1
    says "the audit log has the eject" "volume stick was ejected" lunar audit
    eventually sg_turs "$(sg_of "$removable")"
    try "the initiator ejects" sg_start --eject "$(sg_of "$removable")"
    says "lunar volume medium: ejected by the initiator" "is ejected" lunar volume medium stick
    says "lunar volume load after an eject by the initiator" "is loaded" lunar volume load stick
}

# A stopped process is restarted by systemd's watchdog.
watchdog_test() {
    local before
    before=$(systemctl show lunar -p NRestarts --value)
    kill -STOP "$(systemctl show lunar -p MainPID --value)"
    eventually sh -c "[ \$(systemctl show lunar -p NRestarts --value) != $before ]"
    says "systemd restarts a stopped process" "[1-9]" systemctl show lunar -p NRestarts --value
    eventually lunar status
    still_there "after a restart by the watchdog"
}

# With a second initiator name the guest sees the units of that name's host group.
two_names_test() {
    local found
    # A folder that is newer than the sandbox of the daemon.
    mkdir /srv/later && chown lunar:lunar /srv/later
    try "lunar volume create, in a new folder" lunar volume create later --kind file --path /srv/later/x.img --size 16M
    try "lunar volume delete --with-data, in a new folder" lunar volume delete later --with-data --yes
    try "the file of the new folder is deleted" test ! -e /srv/later/x.img
    try "lunar volume create, for the second initiator" lunar volume create scratch --kind ram --size 16M
    try "lunar group create, for the second initiator" lunar group create others --targets main --initiators "iqn.2026-01.io.lunar.conform:other"
    try "lunar group map, its own volume" lunar group map others 0 scratch
    try "lunar group map, a shared volume, read-only" lunar group map others 5 disk1 --read-only
    initiator other
    iscsiadm -m node -o new -T "$TARGET" -p "$PORTAL" -I other >/dev/null
    with_secret "$SECRET" >/dev/null
    try "login with the second initiator name" node -I other --login
    try "the second initiator sees its own unit" eventually disk_at other 1 0
    try "the second initiator sees the shared unit" eventually disk_at other 1 5
    found=$(disk_at other 1 0)
    eventually blockdev --getsize64 "$found"
    equal "LUN 0 of the second initiator is its own volume" $((16 << 20)) "$(blockdev --getsize64 "$found")"
    equal "LUN 5 of the second initiator is read-only" 1 "$(blockdev --getro "$(disk_at other 1 5)")"
    refuse "the second initiator does not see the units of the first" disk_at other 1 1
    equal "LUN 0 of the first initiator is unchanged" $((20 << 30)) "$(blockdev --getsize64 "$(disk_at default 1 0)")"
    refuse "the first initiator does not see the units of the second" disk_at default 1 5
    try "logout of the second initiator" node -I other --logout
}

follow_the_page
if [ -n "${LOCAL_DISK:-}" ]; then
    head -c 4M /dev/urandom >/tmp/written
    local_disk_test
    finish
fi
unit_test
initiator_test
restart_test
media_test
two_names_test
watchdog_test
try "logout" node --logout
try "systemctl stop" systemctl stop lunar
equal "the unit ended with success" "success" "$(systemctl show lunar -p Result --value)"
finish
