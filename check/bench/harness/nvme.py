"""NVMe/TCP: the targets, the loads, and the cost of idle controllers."""

from __future__ import annotations

import time

from . import measure
from .rows import KIB, Row
from .targets import NULL_BYTES, RAM_BYTES, Floor, Least, Lunar, Setup, Spdk, Target, Unavailable, free_port

NQN = "nqn.2026-01.io.lunar.bench:"
# Entries of a queue: more than the commands of the deepest load.
QUEUE_ENTRIES = 256
# Numbers of idle controllers and of I/O queues of each, rising: a target reuses memory of the previous step, so the
# differences between the steps are reported.
CROWDS = ((64, 1), (128, 1), (128, 5))
# The time for measuring idle CPU time, in seconds.
IDLE_SECONDS = 5.0


class LunarNvme(Lunar):
    scheme = "nvme-tcp"
    first_unit = 1

    def portal_arguments(self) -> list[str]:
        return ["--listen", f"127.0.0.1:{free_port()}", "--nvme", f"127.0.0.1:{self.port}"]


class SpdkNvme(Spdk):
    """SPDK's nvmf_tgt from the build tree in LUNAR_BENCH_SPDK."""

    program = "nvmf_tgt"
    note = ""

    def configure(self) -> None:
        self.rpc("framework_start_init")
        self.rpc("framework_wait_init")
        self.rpc("nvmf_create_transport", trtype="TCP", max_queue_depth=QUEUE_ENTRIES, num_shared_buffers=4095)
        self.rpc("bdev_null_create", name="null", num_blocks=NULL_BYTES // 512, block_size=512)
        self.rpc("bdev_malloc_create", name="ram", num_blocks=RAM_BYTES // 512, block_size=512)
        self.rpc("bdev_aio_create", name="file", filename=str(self.setup.file_image()), block_size=512)
        address = {"trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": str(self.port)}
        for store in ("null", "ram", "file"):
            nqn = NQN + store
            self.rpc("nvmf_create_subsystem", nqn=nqn, allow_any_host=True, serial_number=store)
            self.rpc("nvmf_subsystem_add_ns", nqn=nqn, namespace={"bdev_name": store, "nsid": 1})
            self.rpc("nvmf_subsystem_add_listener", nqn=nqn, listen_address=address)

    def url(self, store: str) -> str | None:
        return f"nvme-tcp://127.0.0.1:{self.port}/{NQN}{store}/1"


class LeastNvme(Least):
    subcommand = "nvme"

    def url(self, store: str) -> str | None:
        return f"nvme-tcp://127.0.0.1:{self.port}/{NQN}{store}/1" if store == "null" else None


KINDS: dict[str, type[Target]] = {"lunar": LunarNvme, "spdk": SpdkNvme, "least": LeastNvme, "floor": Floor}


def rows() -> list[Row]:
    curve = [Row("curve", "randread", 4 * KIB, depth) for depth in (1, 8, 32, 128)]
    writes = [Row("page", "randwrite", 4 * KIB, depth) for depth in (1, 32, 128)]
    polling = [Row("page", "randread", 4 * KIB, depth, spin=True) for depth in (1, 32, 128)]
    polling += [Row("page", "randwrite", 4 * KIB, 32, spin=True)]
    queues = [Row("page", rw, 4 * KIB, 32, 4, what="queues") for rw in ("randread", "randwrite")]
    large = [Row("large", rw, 128 * KIB, 8) for rw in ("read", "write")]
    stores = [Row("stores", rw, 4 * KIB, 32, store="ram") for rw in ("randread", "randwrite")]
    return curve + writes + polling + queues + large + stores


def idle_controllers(setup: Setup, target: Target) -> dict:
    """The cost of idle controllers: memory of each and of each I/O queue, and CPU time."""
    url = target.url("null")
    # Run the load once first: the memory that it uses is not freed.
    load = ["--rw", "randread", "--bs", "4096", "--depth", "32"]
    measure.run_initiator(measure.initiator(setup, url, 0.5, load), 60)
    sizes, percent = [], 0.0
    for controllers, queues in CROWDS:
        idle = ["--idle-sessions", str(controllers), "--idle-queues", str(queues)]
        # One admin queue for each controller, and the queues of the process itself.
        with measure.crowd(setup, url, 1 + controllers * (queues + 1), idle):
            sizes.append(target.memory())
            if len(sizes) == 1:
                percent = measure.idle_cpu(target, IDLE_SECONDS)
        # The target notices closed connections at once.
        time.sleep(0.5)
    (first, _), (more, few), (_, many) = CROWDS
    return {
        "controllers": first,
        "cpu_percent": percent,
        "bytes_per_controller": (sizes[1] - sizes[0]) / (more - first),
        "bytes_per_queue": (sizes[2] - sizes[1]) / (more * (many - few)),
    }


def extras(setup: Setup, targets: list[Target], running) -> dict:
    found: dict[str, dict] = {"idle_cpu_percent": {}, "idle_controllers": {}, "failed": {}}
    for target in targets:
        if isinstance(target, (Floor, Least)):
            continue
        with running(target):
            found["idle_cpu_percent"][target.name] = measure.idle_cpu(target, IDLE_SECONDS)
            try:
                found["idle_controllers"][target.name] = idle_controllers(setup, target)
            except Unavailable as why:
                found["failed"][f"{target.name}, idle controllers"] = str(why)
    return found


__all__ = ["KINDS", "extras", "rows"]
