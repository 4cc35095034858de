"""vfio-user: the targets, the loads, and the cost of idle controllers."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from . import measure
from .guest import Guest, Refused
from .nvme import QUEUE_ENTRIES, SpdkNvme
from .rows import KIB, Row
from .targets import NULL_BYTES, RAM_BYTES, Lunar, Setup, Target, Unavailable

NQN = "nqn.2026-01.io.lunar.bench:"
STORES = ("null", "ram")
# Numbers of idle controllers and of I/O queues of each, rising: a target reuses memory of the previous step, so the
# differences between the steps are reported.
CROWDS = ((32, 1), (64, 1), (64, 5))
MACHINES = max(count for count, _ in CROWDS)
# The time for measuring idle CPU time, in seconds.
IDLE_SECONDS = 5.0
# The pause of a guest before each burst, in seconds, the commands of a burst, and about so many bursts.
REST_SECONDS = 0.05
BURST = 1000
WAKES = 200


class WithMachines:
    """Controllers of virtual machines besides iSCSI."""

    machines = ("bench",)

    def portal_arguments(self) -> list[str]:
        machines = [word for name in self.machines for word in ("--vm", name)]
        return [*super().portal_arguments(), "--vm-folder", str(self.folder()), *machines]

    def folder(self) -> Path:
        return self.setup.folder / f"vm-{self.name}"

    def socket(self, name: str) -> str:
        return str(self.folder() / name / "cntrl")


class LunarVfio(WithMachines, Lunar):
    """Shadow doorbells in the guest's memory, as Linux uses them: an idle guest is not polled."""

    first_unit = 1
    machines = ("bench", *(f"idle{number}" for number in range(MACHINES)))

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, [f"null:{NULL_BYTES}", f"ram:{RAM_BYTES}"])

    def url(self, store: str) -> str | None:
        if store not in STORES:
            return None
        unit = self.first_unit + STORES.index(store)
        return f"vfio-user:{self.socket('bench')}#{unit}"


class LunarMapped(LunarVfio):
    """Mapped doorbells, as SPDK's initiator requires them."""

    name = "mapped"
    note = "Lunar with mapped doorbells, which it polls"

    def arguments(self) -> list[str]:
        return [*super().arguments(), "--doorbells", "mapped"]


class SpdkVfio(SpdkNvme):
    """SPDK's nvmf_tgt with vfio-user, from the build tree in LUNAR_BENCH_SPDK."""

    note = "mapped doorbells, which it always polls"

    def configure(self) -> None:
        self.rpc("framework_start_init")
        self.rpc("framework_wait_init")
        self.rpc("nvmf_create_transport", trtype="VFIOUSER", max_queue_depth=QUEUE_ENTRIES)
        self.rpc("bdev_null_create", name="null", num_blocks=NULL_BYTES // 512, block_size=512)
        self.rpc("bdev_malloc_create", name="ram", num_blocks=RAM_BYTES // 512, block_size=512)
        for store in STORES:
            nqn, folder = NQN + store, self.setup.folder / f"spdk-{store}"
            folder.mkdir(exist_ok=True)
            address = {"trtype": "VFIOUSER", "traddr": str(folder), "trsvcid": "0"}
            self.rpc("nvmf_create_subsystem", nqn=nqn, allow_any_host=True, serial_number=store)
            self.rpc("nvmf_subsystem_add_ns", nqn=nqn, namespace={"bdev_name": store, "nsid": 1})
            self.rpc("nvmf_subsystem_add_listener", nqn=nqn, listen_address=address)

    def url(self, store: str) -> str | None:
        return f"vfio-user:{self.setup.folder / f'spdk-{store}' / 'cntrl'}#1" if store in STORES else None

    def arguments(self) -> list[str]:
        return [*super().arguments(), "--doorbells", "mapped"]


KINDS: dict[str, type[Target]] = {"lunar": LunarVfio, "mapped": LunarMapped, "spdk": SpdkVfio}


def rows() -> list[Row]:
    """The loads; most with a polling initiator."""
    curve = [Row("curve", "randread", 4 * KIB, depth, spin=True) for depth in (1, 8, 32, 128)]
    stores = [Row("stores", "randread", 4 * KIB, depth, store="ram", spin=True) for depth in (1, 32, 128)]
    writes = [Row("page", "randwrite", 4 * KIB, 32, store=store, spin=True) for store in STORES]
    queues = [Row("page", "randread", 4 * KIB, 32, 4, spin=True, what="queues")]
    sleeping = [Row("page", "randread", 4 * KIB, depth) for depth in (1, 32)]
    large = [Row("large", rw, 128 * KIB, 8, store="ram", spin=True) for rw in ("read", "write")]
    return curve + stores + writes + queues + sleeping + large


@contextlib.contextmanager
def crowd(target: LunarVfio, count: int, queues: int):
    """Connects `count` guests, each to a controller of its own."""
    guests = []
    try:
        guests += [Guest(target.socket(f"idle{number}"), queues) for number in range(count)]
        yield
    except (OSError, Refused) as why:
        raise Unavailable(f"guest {len(guests) + 1} of {count}: {why}") from why
    finally:
        for guest in guests:
            guest.close()


def idle_controllers(target: LunarVfio) -> dict:
    """The cost of idle controllers: memory of each and of each I/O queue, and CPU time."""
    sizes, percent = [], 0.0
    for count, queues in CROWDS:
        with crowd(target, count, queues):
            sizes.append(target.memory())
            if (count, queues) == (MACHINES, 1):
                percent = measure.idle_cpu(target, IDLE_SECONDS)
        # Wait until the target has freed the memory.
        time.sleep(0.5)
    (few, _), (many, one), (_, more) = CROWDS
    return {
        "controllers": many,
        "cpu_percent": percent,
        "bytes_per_controller": (sizes[1] - sizes[0]) / (many - few),
        "bytes_per_queue": (sizes[2] - sizes[1]) / (many * (more - one)),
    }


def wakes(setup: Setup, target: LunarVfio) -> dict:
    """The latency of the first command after a pause, in microseconds, and the number of doorbell messages."""
    load = ["--depth", "1", "--burst", str(BURST), "--rest", str(REST_SECONDS), "--spin", *target.arguments()]
    seconds = REST_SECONDS * WAKES
    report = measure.run_initiator(measure.initiator(setup, target.url("null"), seconds, load), seconds + 60)
    first = report["after_rest"]
    times = {f"{name}_us": first["latency_us"][name] for name in ("p50", "p99", "max")}
    return {"times": first["count"], "burst": BURST, "rings": report["rings"] / max(first["count"], 1), **times}


def extras(setup: Setup, targets: list[Target], running) -> dict:
    found: dict[str, dict] = {"idle_cpu_percent": {}, "idle_controllers": {}, "wakes": {}, "failed": {}}
    for target in targets:
        with running(target):
            found["idle_cpu_percent"][target.name] = measure.idle_cpu(target, IDLE_SECONDS)
            if type(target) is not LunarVfio:
                continue
            works = {"idle_controllers": lambda: idle_controllers(target), "wakes": lambda: wakes(setup, target)}
            for what, work in works.items():
                try:
                    found[what][target.name] = work()
                except Unavailable as why:
                    found["failed"][f"{target.name}, {what.replace('_', ' ')}"] = str(why)
    return found


__all__ = ["KINDS", "extras", "rows"]
