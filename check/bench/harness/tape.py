"""The tape library beside the file store on the same file system, over iSCSI."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time

from .handler import WithHandler
from .initiator import Session
from .rows import KIB, MIB, Row
from .targets import Lunar, Setup, Unavailable

# The capacity of the cartridge: more than a run writes.
CAPACITY = "64G"
# The size of the volume in a file.
SIZE = 64 << 30
# MOVE MEDIUM (SMC-3 6.6), and the element addresses of the first slot and of the first drive of `lunar-tape`.
MOVE_MEDIUM = 0xA5
SLOT, DRIVE = 0x400, 0x100
START_TIMEOUT = 20.0


class Tape(WithHandler):
    """A drive of `lunar-tape` with a cartridge in the folder of the file store."""

    name = "tape"
    program = "lunar-tape"
    built_by = "-p lunar-tape"

    def __init__(self, setup: Setup) -> None:
        self.sockets = setup.folder / "tape-sockets"
        super().__init__(setup, [f"handler:{self.sockets}/changer.sock:changer", f"handler:{self.sockets}/drive0.sock:tape"])
        self.library = setup.folder / "library"

    def serve_arguments(self) -> list[str]:
        return ["serve", str(self.library), "--sockets", str(self.sockets)]

    def create(self) -> None:
        self.sockets.mkdir()
        create = [self.executable, "create", self.library, "--drives", "1", "--slots", "1", "--cartridges", "1"]
        subprocess.run([*create, "--capacity", CAPACITY], check=True, capture_output=True)

    def start(self) -> None:
        super().start()
        self.load()

    def load(self) -> None:
        """Moves the cartridge into the drive, as soon as the changer is served."""
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                session = Session(self.port, self.iqn)
                session.ready(0)
                session.run(0, struct.pack(">BxHHH4x", MOVE_MEDIUM, 0, SLOT, DRIVE))
                session.close()
                return
            except Exception as why:  # noqa: BLE001: the library is not there yet
                if time.monotonic() > deadline:
                    raise Unavailable(f"the cartridge is not loaded: {why}") from why
                time.sleep(0.2)

    def url(self, store: str) -> str | None:
        return f"{self.scheme}://127.0.0.1:{self.port}/{self.iqn}/1"

    def stop(self) -> None:
        super().stop()
        shutil.rmtree(self.library, ignore_errors=True)


class File(Lunar):
    """The file store, with a file that has no blocks before a run: a tape writes new blocks, too."""

    name = "file"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.image = setup.folder / "sparse.img"

    def start(self) -> None:
        self.image.touch()
        os.truncate(self.image, SIZE)
        self.volumes = [str(self.image)]
        super().start()

    def prepare(self, row: Row) -> None:
        subprocess.run(["fallocate", "--punch-hole", "--offset", "0", "--length", str(SIZE), self.image], check=True)


def rows() -> list[Row]:
    """Writes, which begin at the begin of the tape."""
    return [Row("large", "write", size, depth) for size in (64 * KIB, 256 * KIB, MIB) for depth in (1, 4)]


KINDS = {kind.name: kind for kind in (Tape, File)}
