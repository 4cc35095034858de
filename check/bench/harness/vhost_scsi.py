"""vhost-user: SCSI host adapters (virtio-scsi) of virtual machines, by a polling driver of rings in memory of its own."""

from __future__ import annotations

from .rows import KIB, Row
from .targets import Target
from .vhost import QUEUES, STORES, LunarVhost, SpdkVhost

DEPTHS = (1, 32, 128)


class LunarVhostScsi(LunarVhost):
    """A host adapter with all stores."""

    def devices(self) -> list[str]:
        return ["--vhost-scsi", "adapter"]

    def url(self, store: str) -> str | None:
        return f"vhost-scsi:{self.folder() / 'adapter'}.sock#{STORES.index(store)}" if store in STORES else None


class SpdkVhostScsi(SpdkVhost):
    """A host adapter for each store: it polls only those that a driver uses."""

    note = "always polls; qemu-storage-daemon is no target here, because it exports no SCSI host adapter"

    def create(self, store: str, controller: str) -> None:
        self.rpc("vhost_create_scsi_controller", ctrlr=controller)
        # Its targets have one logical unit each, LUN 0.
        self.rpc("vhost_scsi_controller_add_target", ctrlr=controller, scsi_target_num=0, bdev_name=store)

    def url(self, store: str) -> str | None:
        return f"vhost-scsi:{self.folder() / store}.sock#0" if store in STORES else None


KINDS: dict[str, type[Target]] = {"lunar": LunarVhostScsi, "spdk": SpdkVhostScsi}


def rows() -> list[Row]:
    """The loads, all with a polling driver."""

    def pages(group: str, rw: str, store: str, queues: int = 1) -> list[Row]:
        return [Row(group, rw, 4 * KIB, depth, queues, store, spin=True, what="queues") for depth in DEPTHS]

    curve = pages("curve", "randread", "null")
    stores = pages("stores", "randread", "ram")
    writes = [row for store in STORES for row in pages("page", "randwrite", store)]
    queues = [row for rw in ("randread", "randwrite") for store in STORES for row in pages("page", rw, store, QUEUES)]
    large = [Row("large", rw, 128 * KIB, 8, store="ram", spin=True) for rw in ("read", "write")]
    return curve + stores + writes + queues + large


__all__ = ["KINDS", "rows"]
