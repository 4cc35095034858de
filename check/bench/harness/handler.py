"""The cost of a volume whose data a handler serves: a handler that stores nothing, beside the store that does so."""

from __future__ import annotations

import subprocess

from .rows import KIB, MIB, Row
from .targets import INITIATOR_CPU, NULL_BYTES, Lunar, Setup, Unavailable
from .vfio import WithMachines


class WithHandler(Lunar):
    """Lunar with volumes of a handler, which runs on the initiator's CPU."""

    # The program of the handler beside the floor, and what cargo builds it by.
    program = ""
    built_by = ""

    def __init__(self, setup: Setup, volumes: list[str]) -> None:
        super().__init__(setup, volumes)
        self.executable = setup.floor.parent / self.program
        self.handler: subprocess.Popen | None = None

    def serve_arguments(self) -> list[str]:
        """The arguments with which the handler serves."""
        raise NotImplementedError

    def create(self) -> None:
        """Creates the data of the handler."""

    def start(self) -> None:
        if not self.executable.exists():
            raise Unavailable(f"{self.executable} is not built: cargo build --release {self.built_by}")
        self.create()
        super().start()
        command = ["taskset", "-c", str(INITIATOR_CPU), str(self.executable), *self.serve_arguments()]
        with (self.setup.folder / f"{self.name}-handler.log").open("wb") as log:
            self.handler = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def stop(self) -> None:
        super().stop()
        if self.handler is not None:
            self.handler.terminate()
            self.handler.wait()
            self.handler = None


class Store(Lunar):
    """The null store."""

    name = "store"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, [f"null:{NULL_BYTES}"])


class Handler(WithHandler):
    """A volume of the example `null_handler`."""

    name = "handler"
    program = "examples/null_handler"
    built_by = "-p lunar-handler --example null_handler"

    def __init__(self, setup: Setup) -> None:
        self.served_at = setup.folder / "null.sock"
        super().__init__(setup, [f"handler:{self.served_at}:{NULL_BYTES}"])

    def serve_arguments(self) -> list[str]:
        return [str(self.served_at)]


class OverVfioUser(WithMachines):
    """The first volume as a namespace of a controller of a virtual machine, with shadow doorbells."""

    def url(self, store: str) -> str | None:
        return f"vfio-user:{self.socket('bench')}#1"


class HandlerOverVfioUser(OverVfioUser, Handler):
    """The same over vfio-user."""


class StoreOverVfioUser(OverVfioUser, Store):
    """The same over vfio-user."""


def rows() -> list[Row]:
    curve = [Row("curve", "randread", 4 * KIB, depth) for depth in (1, 2, 4, 8, 16, 32, 64, 128)]
    page = [Row("page", "randwrite", 4 * KIB, depth) for depth in (1, 32, 128)]
    large = [Row("large", rw, size, 8) for size in (128 * KIB, MIB) for rw in ("read", "write")]
    return curve + page + large


KINDS = {kind.name: kind for kind in (Handler, Store)}
VFIO_USER_KINDS = {kind.name: kind for kind in (HandlerOverVfioUser, StoreOverVfioUser)}
