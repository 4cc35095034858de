# The group nvme of blktests: the cases that get their target from a program instead of the kernel's configfs.
. /test/lib.sh
. /test/settings # HOST PORT NQN

# The cases that apply (docs/conformance.md has the reasons for the others), and the limit of each in seconds.
CASES="004 005 008 010 012 014 018 019 021 022 023 025 026 027 028 029 040 047 054"
LIMIT=180

id=0f01fb42-9f7f-4856-b0b3-51e60b8de349
hostnqn=nqn.2014-08.org.nvmexpress:uuid:$id
nvme connect -t tcp -a "$HOST" -s "$PORT" -n "$NQN" -q "$hostnqn" -I "$id" >/dev/null || { bad "connect"; finish; }
eventually test -e /sys/block/nvme0n1/uuid
uuid=$(cat /sys/block/nvme0n1/uuid)
nvme disconnect -n "$NQN" >/dev/null

cat >/usr/bin/target-control <<END
#!/bin/bash
# Answers the queries of blktests for a target that exists already.
case "\$1 \$2" in
"config --show-trtype") echo tcp ;;
"config --show-blkdev-type") echo device ;;
"config --show-hostnqn") echo $hostnqn ;;
"config --show-hostid") echo $id ;;
"config --show-traddr") echo $HOST ;;
"config --show-trsvid") echo $PORT ;;
"config --show-subsys-uuid") echo $uuid ;;
"config --show-subsysnqn") echo $NQN ;;
esac
END
# Stubs for programs that the suite requires: nothing here is attached to a loop device.
mkdir -p /usr/local/sbin
printf '#!/bin/sh\nexit 0\n' >/usr/local/sbin/udevadm
printf '#!/bin/sh\ncase "$*" in *--show*) echo /dev/loop0 ;; esac\n' >/usr/local/sbin/losetup
printf '#!/bin/sh\ncat\n' >/usr/local/sbin/column
chmod +x /usr/bin/target-control /usr/local/sbin/*
command -v gawk >/dev/null || ln -s "$(command -v mawk)" /usr/bin/gawk
mount -t configfs configfs /sys/kernel/config 2>/dev/null
mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null

cd /test/blktests || exit 1
export NVME_TARGET_CONTROL=/usr/bin/target-control NVME_IMG_SIZE=16M NVME_NUM_ITER=3 TIMEOUT=20
for case in $CASES; do
    output=$(timeout $LIMIT bash ./check "nvme/$case" 2>&1)
    status=$?
    name="nvme/$case $(sed -n 's/^DESCRIPTION="\(.*\)"/\1/p' "tests/nvme/$case")"
    case "$status $output" in
    "0 "*"[passed]"*) ok "$name" ;;
    *"[not run]"*) echo "@skip $name: $(printf '%s' "$output" | grep -v '^nvme/' | tr -s ' \n' ' ' | cut -c1-150)" ;;
    *)
        printf '%s\n' "$output" | tail -n 30
        echo "status $status (124: stopped after $LIMIT s)"
        bad "$name"
        ;;
    esac
    nvme disconnect-all >/dev/null 2>&1
done
finish
