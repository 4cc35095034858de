# A SCSI disk of this machine over iSCSI: passed through by Lunar, by the kernel's target (LIO, pscsi), and by tgt (sg).
. /test/lib.sh
. /test/initiator.sh
. /test/figures.sh
. /test/settings # DRIVER

NAME=iqn.2026-01.io.lunar.conform

modules_of "$HERE/modules" scsi_debug
insmod "$held" ptype=0 num_tgts=3 max_luns=1 dev_size_mb=64 delay=0
daemon 60
# Three equal disks: host, channel, target, LUN.
places() {
    places=()
    local model
    for model in /sys/class/scsi_device/*/device/model; do
        grep -q scsi_debug "$model" && { model=${model%/device/model}; places+=("${model##*/}"); }
    done
    [ ${#places[@]} = 3 ] && [ -c "$(generic "${places[2]}")" ] && [ -b "$(block "${places[2]}")" ]
}
generic() { echo "/dev/$(ls "/sys/class/scsi_device/$1/device/scsi_generic")"; }
block() { echo "/dev/$(ls "/sys/class/scsi_device/$1/device/block")"; }
eventually places
places || { bad "three disks"; finish; }

serve "[volume.disk]
kind = \"scsi\"
path = \"$(generic "${places[0]}")\"
$(one_target "$NAME:lunar" 127.0.0.1:3260 '0 = "disk"')"
IFS=: read -r host channel id lun <<<"${places[1]}"
try "LIO has the disk" lio_store pscsi \
    "scsi_host_id=$host,scsi_channel_id=$channel,scsi_target_id=$id,scsi_lun_id=$lun" "$(block "${places[1]}")" || dmesg | tail
try "LIO serves" lio_iscsi "$NAME:lio" 127.0.0.1:3270 pscsi || dmesg | tail
mkdir -p /var/run/tgtd /run/tgtd
tgtd --iscsi portal=127.0.0.1:3280
eventually tgtadm --op show --mode system
tgtadm --op new --mode target --tid 1 -T "$NAME:tgt"
try "tgt serves" tgtadm --op new --mode logicalunit --tid 1 --lun 1 --bstype sg --device-type pt -b "$(generic "${places[2]}")"
tgtadm --op bind --mode target --tid 1 -I ALL

log_in "$NAME:lunar" 127.0.0.1:3260
lunar=$disk
log_in "$NAME:lio" 127.0.0.1:3270
lio=$disk
# LUN 0 of tgt is its controller.
log_in "$NAME:tgt" 127.0.0.1:3280 default 1
compare "SCSI pass-through over iSCSI" lunar="$lunar" lio="$lio" tgt="$disk" disk="$(block "${places[0]}")"
finish
