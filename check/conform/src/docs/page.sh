#!/bin/sh
# Runs the commands of a page in a network namespace: page.sh FOLDER PROGRAM COMMANDS. The folder has the files of the
# example server.
set -eu
folder=$1 program=$2 commands=$3
cd "$folder"
ip link set lo up
for address in 192.0.2.10/24 192.0.2.11/24; do ip address add "$address" dev lo; done
export LUNAR_SOCKET="$folder/run/lunar/api.sock" PATH="$folder/bin:$PATH"
ln -s "$program" bin/lunar

setpriv --pdeathsig KILL -- lunar daemon --config "$folder/etc/lunar/lunar.toml" >log 2>&1 &
daemon=$!
tries=0
until lunar status 2>/dev/null | grep -q ': no troubles$'; do
    tries=$((tries + 1))
    [ $tries -lt 200 ] && kill -0 $daemon || { echo "the example server does not start:"; cat log; exit 1; }
    sleep 0.1
done

# A host that reads and writes, and another one that is refused.
url=iscsi://127.0.0.1:3260/iqn.2026-01.org.example:main
setpriv --pdeathsig KILL -- lunar bench $url/0 --rw randrw --depth 2 --time 600 >load 2>&1 &
load=$!
lunar bench $url/0 --initiator-name iqn.2026-01.org.example:web1 --time 1 >refused 2>&1 && exit 1
tries=0
until [ "$(lunar session list | wc -l)" -gt 1 ]; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { echo "the host does not log in:"; cat load; exit 1; }
    sleep 0.1
done
# The first measurement of space.
tries=0
until curl --silent --unix-socket "$LUNAR_SOCKET" http://lunar/metrics | grep -q '^lunar_store_free'; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { echo "no space is measured:"; cat log; exit 1; }
    sleep 0.1
done

sh -eu "$commands"

kill $load 2>/dev/null || true
kill $daemon
wait $daemon || { echo "the example server ends with status $?:"; cat log; exit 1; }
