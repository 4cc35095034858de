# A system that has booted from the volume of its virtual machine: firmware, loader, kernel and systemd came from it. The
# second boot is the one that finds the file of the first.
. /test/lib.sh

if [ -e /kept.sum ]; then boot=second; else boot=first; fi
says "$boot boot: the root file system is on the volume" "^/dev/(vd|sd)[a-z]2 +ext4" findmnt -n -o SOURCE,FSTYPE /
try "$boot boot: systemd has started the system" eventually systemctl is-active basic.target
try "$boot boot: the programs can be read" \
    sh -c "find /usr/bin /usr/lib/systemd -xdev -type f -exec cat {} + >/dev/null"
if [ $boot = first ]; then
    dd if=/dev/urandom of=/kept bs=1M count=16 status=none
    try "first boot: written data is synced" sh -c "sha256sum /kept >/kept.sum && sync"
else
    try "second boot: data of the first boot is intact" sha256sum -c --quiet /kept.sum
fi
equal "$boot boot: no I/O error" "" "$(dmesg | grep -i 'I/O error')"
ok "the $boot boot is complete"
finish
