"""The cost of a volume whose data a handler serves: a handler that stores nothing, beside the store that does so."""

from __future__ import annotations

import subprocess

from .rows import KIB, MIB, Row
from .targets import INITIATOR_CPU, NULL_BYTES, Lunar, Setup, Unavailable


class Store(Lunar):
    """The null store."""

    name = "store"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, [f"null:{NULL_BYTES}"])
        self.stats = setup.folder / "store.stats"


class Handler(Lunar):
    """A volume of the example `null_handler`, which runs on the initiator's CPU."""

    name = "handler"

    def __init__(self, setup: Setup) -> None:
        self.socket = setup.folder / "null.sock"
        super().__init__(setup, [f"handler:{self.socket}:{NULL_BYTES}"])
        self.stats = setup.folder / "handler.stats"
        self.program = setup.floor.parent / "examples" / "null_handler"
        self.handler: subprocess.Popen | None = None

    def start(self) -> None:
        if not self.program.exists():
            raise Unavailable(f"{self.program} is not built: cargo build --release -p lunar-handler --example null_handler")
        super().start()
        command = ["taskset", "-c", str(INITIATOR_CPU), str(self.program), str(self.socket)]
        with (self.setup.folder / "null_handler.log").open("wb") as log:
            self.handler = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def stop(self) -> None:
        super().stop()
        if self.handler is not None:
            self.handler.kill()
            self.handler.wait()
            self.handler = None


def rows() -> list[Row]:
    curve = [Row("curve", "randread", 4 * KIB, depth) for depth in (1, 2, 4, 8, 16, 32, 64, 128)]
    page = [Row("page", "randwrite", 4 * KIB, depth) for depth in (1, 32, 128)]
    large = [Row("large", rw, size, 8) for size in (128 * KIB, MIB) for rw in ("read", "write")]
    return curve + page + large


KINDS = {kind.name: kind for kind in (Handler, Store)}
