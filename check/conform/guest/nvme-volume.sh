# A volume of a pool, as the kernel's NVMe/TCP host sees it.
. /test/lib.sh
. /test/nvme_host.sh
. /test/settings # HOST PORT NQN

identity
volume_cases
finish
