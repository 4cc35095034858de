"""vhost-user: disks (virtio-blk) of virtual machines, by a polling driver of rings in memory of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from . import measure
from .rows import KIB, Row
from .targets import NULL_BYTES, RAM_BYTES, Lunar, Setup, Spdk, Target, Unavailable, wait_for

STORES = ("null", "ram")
# The most queues of a load.
QUEUES = 4
# Idle machines, each with a disk of its own.
MACHINES = 64
# The time for measuring idle CPU time, in seconds.
IDLE_SECONDS = 5.0
# The runs of an iSCSI session beside idle machines, and the seconds of each.
OTHER_RUNS = 5
OTHER_SECONDS = 1.5


class LunarVhost(Lunar):
    """A disk for each store."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, [f"null:{NULL_BYTES}", f"ram:{RAM_BYTES}"])

    def portal_arguments(self) -> list[str]:
        return [*super().portal_arguments(), "--vhost-folder", str(self.folder()), *self.devices()]

    def devices(self) -> list[str]:
        """The options for its devices."""
        disks = [f"{store}:{lun}" for lun, store in enumerate(STORES)] + [f"idle{at}:0" for at in range(MACHINES)]
        return [word for disk in disks for word in ("--vhost-blk", disk)]

    def folder(self) -> Path:
        return self.setup.folder / "vhost-lunar"

    def disk(self, name: str) -> str:
        return f"vhost-user:{self.folder() / name}.sock"

    def url(self, store: str) -> str | None:
        return self.disk(store) if store in STORES else None


class SpdkVhost(Spdk):
    """SPDK's vhost from the build tree in LUNAR_BENCH_SPDK."""

    program = "vhost"
    note = "always polls"

    def program_arguments(self) -> list[str]:
        self.folder().mkdir(exist_ok=True)
        return ["-S", str(self.folder())]

    def folder(self) -> Path:
        return self.setup.folder / "vhost-spdk"

    def configure(self) -> None:
        self.rpc("framework_start_init")
        self.rpc("framework_wait_init")
        self.rpc("bdev_null_create", name="null", num_blocks=NULL_BYTES // 512, block_size=512)
        self.rpc("bdev_malloc_create", name="ram", num_blocks=RAM_BYTES // 512, block_size=512)
        for store in STORES:
            self.create(store, f"{store}.sock")

    def create(self, store: str, controller: str) -> None:
        """Creates the device of a store."""
        self.rpc("vhost_create_blk_controller", ctrlr=controller, dev_name=store)

    def url(self, store: str) -> str | None:
        return f"vhost-user:{self.folder() / store}.sock" if store in STORES else None


class Qsd(Target):
    """QEMU's storage daemon."""

    name = "qsd"
    note = "qemu-storage-daemon; its store `ram` is a file in memory"

    def start(self) -> None:
        program = shutil.which("qemu-storage-daemon")
        if program is None:
            raise Unavailable("qemu-storage-daemon is not installed (Debian: apt install qemu-utils)")
        self.ram = Path("/dev/shm") / f"lunar-bench-{os.getpid()}-qsd.img"
        with self.ram.open("wb") as out:
            for _ in range(RAM_BYTES >> 20):
                out.write(os.urandom(1 << 20))
        command = [program, "--blockdev", f"driver=null-co,node-name=null,size={NULL_BYTES},read-zeroes=off"]
        command += ["--blockdev", f"driver=file,node-name=ram,filename={self.ram}"]
        for store in STORES:
            export = f"type=vhost-user-blk,id={store},node-name={store},writable=on,num-queues={QUEUES}"
            command += ["--export", f"{export},addr.type=unix,addr.path={self.socket(store)}"]
        self.spawn(command)
        wait_for(program, lambda: all(self.socket(store).exists() for store in STORES), self.process, self.log)

    def socket(self, store: str) -> Path:
        return self.setup.folder / f"qsd-{store}.sock"

    def url(self, store: str) -> str | None:
        return f"vhost-user:{self.socket(store)}" if store in STORES else None

    def stop(self) -> None:
        super().stop()
        if hasattr(self, "ram"):
            self.ram.unlink(missing_ok=True)


KINDS: dict[str, type[Target]] = {"lunar": LunarVhost, "spdk": SpdkVhost, "qsd": Qsd}


def rows() -> list[Row]:
    """The loads; most with a polling driver."""
    curve = [Row("curve", "randread", 4 * KIB, depth, spin=True) for depth in (1, 8, 32, 128)]
    stores = [Row("stores", "randread", 4 * KIB, depth, store="ram", spin=True) for depth in (1, 32, 128)]
    writes = [Row("page", "randwrite", 4 * KIB, depth, store=store, spin=True) for depth in (1, 32, 128) for store in STORES]
    queues = [Row("page", "randread", 4 * KIB, depth, QUEUES, spin=True, what="queues") for depth in (1, 32)]
    sleeping = [Row("page", "randread", 4 * KIB, depth) for depth in (1, 32)]
    large = [Row("large", rw, 128 * KIB, 8, store="ram", spin=True) for rw in ("read", "write")]
    return curve + stores + writes + queues + sleeping + large


def of_others(setup: Setup, target: LunarVhost) -> list[float]:
    """The rates of some runs of an iSCSI session of the same target."""
    load = ["--rw", "randread", "--bs", str(4 * KIB), "--depth", "32"]
    command = measure.initiator(setup, f"iscsi://127.0.0.1:{target.port}", OTHER_SECONDS, load)
    return [measure.run_initiator(command, OTHER_SECONDS + 60)["iops"] for _ in range(OTHER_RUNS)]


@contextlib.contextmanager
def machines(setup: Setup, target: LunarVhost, count: int) -> Iterator[None]:
    """Idle machines, after a second in which the target falls asleep."""
    with contextlib.ExitStack() as stack:
        for number in range(count):
            stack.enter_context(measure.crowd(setup, target.disk(f"idle{number}"), 0, ["--bs", str(4 * KIB)]))
        time.sleep(1)
        yield


def idle_machines(setup: Setup, target: LunarVhost) -> dict:
    """The cost of idle machines: CPU time, memory of each with one queue, and the rate of an iSCSI session."""
    # Machines first: an iSCSI session leaves memory that machines would use again.
    with machines(setup, target, 1):
        one = target.memory()
    with machines(setup, target, MACHINES):
        memory = (target.memory() - one) / (MACHINES - 1)
        percent = measure.idle_cpu(target, IDLE_SECONDS)
    alone = of_others(setup, target)
    with machines(setup, target, MACHINES):
        crowded = of_others(setup, target)
    # The drift of the machine: half of the runs without machines are behind those with them.
    alone += of_others(setup, target)
    ratio = median(crowded) / median(alone)
    return {"machines": MACHINES, "cpu_percent": percent, "bytes_per_machine": memory, "iscsi_ratio": ratio}


def extras(setup: Setup, targets: list[Target], running) -> dict:
    found: dict[str, dict] = {"idle_cpu_percent": {}, "idle_machines": {}, "failed": {}}
    for target in targets:
        with running(target):
            found["idle_cpu_percent"][target.name] = measure.idle_cpu(target, IDLE_SECONDS)
            if isinstance(target, LunarVhost):
                try:
                    found["idle_machines"][target.name] = idle_machines(setup, target)
                except Unavailable as why:
                    found["failed"][f"{target.name}, idle machines"] = str(why)
    return found


__all__ = ["KINDS", "extras", "rows"]
