# Namespaces of an emulated NVMe drive over NVMe/TCP: as a block device, and by NVMe commands; beside the drive itself.
. /test/lib.sh
. /test/nvme_host.sh
. /test/figures.sh
. /test/settings # DRIVER

NQN=nqn.2026-01.io.lunar.conform:figures

modules_of "$HERE/modules"
serve "[volume.block]
kind = \"block\"
path = \"/dev/nvme0n2\"
[volume.nvme]
kind = \"nvme\"
path = \"/dev/ng0n3\"
[portal-group.p]
tag = 1
[portal.one]
protocol = \"nvme-tcp\"
address = \"127.0.0.1:4420\"
group = \"p\"
[target.main]
nqn = \"$NQN\"
portal-groups = [\"p\"]
[group.all]
targets = [\"main\"]
initiators = [\"*\"]
luns = { 0 = \"block\", 1 = \"nvme\" }"
identity
try "connect" nvme connect -t tcp -a 127.0.0.1 -s 4420 -n "$NQN" -i 2 || finish
found() {
    disks=($(namespaces "$NQN"))
    [ ${#disks[@]} = 2 ]
}
eventually found
found || { ls /sys/class/nvme-subsystem/*; bad "two namespaces"; finish; }
compare "NVMe pass-through over NVMe/TCP" block="${disks[0]}" nvme="${disks[1]}" disk=/dev/nvme0n1
finish
