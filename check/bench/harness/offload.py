"""Offloaded operations, whose data does not cross the wire: zeroing, EXTENDED COPY, token copies, VERIFY."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from . import report
from .initiator import Session
from .targets import Lunar, Setup

BLOCK = 512
# The published rates of FreeBSD's CTL with memory, in GB/s.
PUBLISHED = {"zero": 4.0, "xcopy": 1.3, "token": 1.47, "verify": 0.467}
TITLES = {
    "zero": "WRITE SAME of zeroes",
    "xcopy": "EXTENDED COPY",
    "token": "copy by token (ODX)",
    "verify": "VERIFY",
    "bare": "`cp` and `sync`, no target",
}
# The reference for all copies: the file system copies every byte.
BARE = ["cp", "--reflink=never", "--sparse=never"]
MAKE = {"xfs": ["mkfs.xfs", "-q", "-m", "reflink=1"], "ext4": ["mkfs.ext4", "-q", "-F"]}
# Commands in progress at the same time, each on a session of its own.
DEPTH = 4
CHUNK = 64 << 20
SEGMENT_BLOCKS = 32768
# The number of ranges of a copy that are compared with its source.
RANGES = 64
GIB = 1 << 30


@dataclass
class Limits:
    """The limits of one command, in blocks."""

    write_same: int
    transfer: int
    segments: int
    segment: int
    token: int


@contextlib.contextmanager
def file_system(kind: str, folder: Path, size: int) -> Iterator[Path]:
    """A mounted file system of this kind in a file or in memory. Needs root."""
    image, mount = folder / f"{kind}.img", folder / kind
    mount.mkdir()
    with image.open("wb") as out:
        out.truncate(size)
    if kind == "tmpfs":
        make, source = ["true"], ["-t", "tmpfs", "-o", f"size={size}", "tmpfs"]
    else:
        make, source = MAKE[kind], ["-o", "loop", str(image)]
    subprocess.run([*make, str(image)], check=True)
    subprocess.run(["mount", *source, str(mount)], check=True)
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=False)
        image.unlink()


def fill(path: Path, size: int) -> None:
    """Fills a file with random data and syncs it."""
    piece = os.urandom(16 << 20)
    with path.open("wb") as out:
        for number in range(0, size, len(piece)):
            # Each piece differs from the previous one.
            out.write(number.to_bytes(8) + piece[8:])
        out.flush()
        os.fsync(out.fileno())


def limits(session: Session) -> Limits:
    page = session.run(0, bytes([0x12, 1, 0xB0, 1, 0, 0]), room=256)
    transfer, same = struct.unpack(">I", page[8:12])[0], struct.unpack(">Q", page[36:44])[0]
    response = session.run(0, bytes([0x84, 3]) + bytes(8) + struct.pack(">I", 512), room=512)
    segments, segment = struct.unpack(">H", response[10:12])[0], struct.unpack(">I", response[16:20])[0]
    copies = session.run(0, bytes([0x12, 1, 0x8F, 4, 0, 0]), room=1024)
    at, token = 4, 0
    while at + 4 <= len(copies):
        kind, length = struct.unpack(">HH", copies[at : at + 4])
        if kind == 0:
            token = struct.unpack(">Q", copies[at + 20 : at + 28])[0]
        at += 4 + length
    whole = CHUNK // BLOCK
    at_most = [min(limit or whole, whole) for limit in (same, transfer, token)]
    return Limits(at_most[0], at_most[1], segments, min(segment // BLOCK or SEGMENT_BLOCKS, SEGMENT_BLOCKS), at_most[2])


def designator(session: Session, lun: int) -> bytes:
    """The CSCD descriptor of a disk (SPC-4 6.4.4)."""
    page = session.run(lun, bytes([0x12, 1, 0x83, 4, 0, 0]), room=1024)
    at = 4
    while at + 4 <= len(page):
        code, kind, _, length = page[at : at + 4]
        if kind & 0x3F == 3:
            naa = page[at : at + 4 + length]
            return (bytes([0xE4, 0, 0, 0]) + naa).ljust(28, b"\0") + bytes([0, *BLOCK.to_bytes(3)])
        at += 4 + length
    raise RuntimeError("the disk has no NAA designator")


def zero(session: Session, limit: Limits, lba: int, count: int, number: int) -> None:
    session.run(1, struct.pack(">BBQIBB", 0x93, 0, lba, count, 0, 0), out=bytes(BLOCK))


def verify(session: Session, limit: Limits, lba: int, count: int, number: int) -> None:
    session.run(0, struct.pack(">BBQIBB", 0x8F, 0, lba, count, 0, 0))


def xcopy(session: Session, limit: Limits, lba: int, count: int, number: int) -> None:
    cscds = designator(session, 0) + designator(session, 1)
    step = limit.segment
    segments = b"".join(
        struct.pack(">BBHHHHHQQ", 0x02, 0, 0x18, 0, 1, 0, min(step, lba + count - at), at, at)
        for at in range(lba, lba + count, step)
    )
    head = struct.pack(">BBHIII", number & 0xFF, 0, len(cscds), 0, len(segments), 0)
    data = head + cscds + segments
    session.run(1, bytes([0x83, 0]) + bytes(8) + struct.pack(">I", len(data)), out=data)


def token(session: Session, limit: Limits, lba: int, count: int, number: int) -> None:
    ranges = struct.pack(">QII", lba, count, 0)
    make = struct.pack(">HBBII2xH", 14 + len(ranges), 0, 0, 0, 0, len(ranges)) + ranges
    session.run(0, bytes([0x83, 0x10]) + bytes(4) + struct.pack(">II", number, len(make)), out=make)
    response = session.run(0, bytes([0x84, 7]) + struct.pack(">I", number) + bytes(4) + struct.pack(">I", 1024), room=1024)
    use = struct.pack(">HB5xQ", 534 + len(ranges), 0x02, 0) + response[38:550] + struct.pack(">6xH", len(ranges)) + ranges
    session.run(1, bytes([0x83, 0x11]) + bytes(4) + struct.pack(">II", number, len(use)), out=use)


WAYS: dict[str, tuple[Callable[..., None], Callable[[Limits], int]]] = {
    "xcopy": (xcopy, lambda limit: min(CHUNK // BLOCK, limit.segments * limit.segment)),
    "token": (token, lambda limit: limit.token),
    "verify": (verify, lambda limit: limit.transfer),
    "zero": (zero, lambda limit: limit.write_same),
}


def measure(port: int, target: str, way: str, size: int) -> dict:
    """Runs the operation on the whole disk, with the longest commands that it supports."""
    command, chunk = WAYS[way]
    sessions = [Session(port, target) for _ in range(DEPTH)]
    for session in sessions:
        session.ready(0)
        session.ready(1)
    limit = limits(sessions[0])
    step, blocks = chunk(limit), size // BLOCK
    work: queue.SimpleQueue = queue.SimpleQueue()
    starts = range(0, blocks, step)
    for number, lba in enumerate(starts, 1):
        work.put((lba, min(step, blocks - lba), number))
    before = sum(session.wire_bytes for session in sessions)
    failed: list[Exception] = []

    def worker(session: Session) -> None:
        try:
            while not failed:
                command(session, limit, *work.get_nowait())
        except queue.Empty:
            pass
        except Exception as why:  # noqa: BLE001: raised by the main thread
            failed.append(why)

    threads = [threading.Thread(target=worker, args=(session,)) for session in sessions]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    if way != "verify":
        # A completed copy may be in the cache, like a completed write.
        sessions[0].run(1, bytes([0x91]))
    seconds = time.monotonic() - began
    wire = sum(session.wire_bytes for session in sessions) - before
    for session in sessions:
        session.close()
    return {"way": way, "bytes": size, "seconds": seconds, "commands": len(starts), "wire_bytes": wire}


def same(one: Path, other: Path, size: int) -> None:
    """Compares ranges of the copy with its source."""
    with one.open("rb") as source, other.open("rb") as copy:
        for number in range(RANGES):
            at = (size // RANGES) * number
            source.seek(at)
            copy.seek(at)
            if source.read(1 << 20) != copy.read(1 << 20):
                raise RuntimeError(f"the copy differs near byte {at}")


def zeroed(disk: Path, size: int) -> None:
    """Checks ranges of a zeroed disk."""
    with disk.open("rb") as file:
        for number in range(RANGES):
            file.seek((size // RANGES) * number)
            if any(file.read(1 << 20)):
                raise RuntimeError(f"not zeroes near byte {(size // RANGES) * number}")


def measure_bare(source: Path, copy: Path, size: int) -> dict:
    """Measures a copy by the file system itself, including the sync."""
    began = time.monotonic()
    subprocess.run([*BARE, str(source), str(copy)], check=True)
    subprocess.run(["sync", str(copy)], check=True)
    return {"way": "bare", "bytes": size, "seconds": time.monotonic() - began, "commands": 0, "wire_bytes": 0}


def measure_once(way: str, how: Setup, source: Path, copy: Path, size: int) -> dict:
    copies = way in ("xcopy", "token", "bare")
    if copies:
        copy.unlink(missing_ok=True)
        with copy.open("wb") as out:
            out.truncate(size)
    # Write the dirty pages of earlier runs first.
    os.sync()
    if way == "bare":
        return measure_bare(source, copy, size)
    lunar = Lunar(how, [str(source), str(copy)])
    try:
        lunar.start()
        row = measure(lunar.port, lunar.iqn, way, size)
    finally:
        lunar.stop()
    if copies:
        same(source, copy, size)
    elif way == "zero":
        zeroed(copy, size)
    return row


def measure_on(kind: str, how: Setup, folder: Path, size: int, rounds: int) -> list[dict]:
    """Measures all operations in turns; returns the median run of each."""
    runs: dict[str, list[dict]] = {way: [] for way in [*WAYS, "bare"]}
    with file_system(kind, folder, 2 * size + 2 * GIB) as mount:
        source, copy = mount / "source.img", mount / "copy.img"
        fill(source, size)
        for _ in range(rounds):
            for way, row in ((way, measure_once(way, how, source, copy, size)) for way in runs):
                runs[way].append({"file_system": kind, **row})
                print(f"{kind} {way}: {row['bytes'] / row['seconds'] / 1e9:.2f} GB/s", file=sys.stderr)
    seconds = {way: statistics.median_low(row["seconds"] for row in found) for way, found in runs.items()}
    return [next(row for row in found if row["seconds"] == seconds[way]) for way, found in runs.items()]


def markdown(found: dict, plots: list[str]) -> str:
    machine = found["machine"]
    lines = [
        "# Offloaded operations",
        "",
        f"{machine['processor']}, {machine['cpus']} CPUs, Linux {machine['kernel']}, {machine['date']}; one core",
        f"serves, {DEPTH} commands in progress; the time includes a SYNCHRONIZE CACHE at the end. Medians of",
        f"{found['rounds']} runs in turns. The file systems other than tmpfs are in files on {machine['file_system']}.",
        "",
        "The last column has the published rates of FreeBSD's CTL with memory, on other hardware, for orientation only.",
        "",
    ]
    body = [
        [
            f"{TITLES[row['way']]}, {row['file_system']}",
            f"{row['bytes'] / GIB:g} GiB",
            f"{row['seconds']:.2f} s",
            f"{row['bytes'] / row['seconds'] / 1e9:.2f}",
            f"{row['wire_bytes'] / 1e3:,.0f} KB",
            f"{row['commands']}",
            f"{PUBLISHED[row['way']]:g}" if row["way"] in PUBLISHED else "",
        ]
        for row in found["rows"]
    ]
    lines += report.table(["", "size", "time", "GB/s", "on the wire", "commands", "CTL, GB/s"], body)
    lines += ["", *(f"![{plot}]({plot})" for plot in plots)]
    return "\n".join(lines).rstrip() + "\n"


def plot(found: dict, folder: Path, name: str) -> list[str]:
    plt = report.pyplot()
    if plt is None:
        return []
    rows = found["rows"]
    figure, axes = plt.subplots(figsize=(8, 0.6 + 0.42 * len(rows)))
    at = range(len(rows))
    ours = [row["bytes"] / row["seconds"] / 1e9 for row in rows]
    theirs = [PUBLISHED.get(row["way"], 0.0) for row in rows]
    axes.barh([y - 0.2 for y in at], ours, 0.38, color="#2b5fd9", label="lunar")
    axes.barh([y + 0.2 for y in at], theirs, 0.38, color="#7a8190", label="CTL, as published")
    axes.set_yticks(list(at), [f"{TITLES[row['way']]}, {row['file_system']}" for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("GB/s")
    axes.grid(axis="x", alpha=0.3)
    report.legend(axes, 2)
    figure.savefig(folder / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    return [f"{name}.svg"]


def run(
    how: Callable[[Path], Setup], sizes: dict[str, int], rounds: int, within: Path | None, results: Path, name: str
) -> int:
    """Measures on each file system; writes the table and the plot."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="lunar-bench-", dir=within) as scratch:
        folder = Path(scratch)
        machine = report.machine(folder)
        for kind, size in sizes.items():
            try:
                rows += measure_on(kind, how(folder), folder, size, rounds)
            except (OSError, subprocess.CalledProcessError) as why:
                print(f"{kind} is skipped: {why}", file=sys.stderr)
    if not rows:
        print("nothing was measured: mounting file systems needs root", file=sys.stderr)
        return 1
    found = {"machine": machine, "rounds": rounds, "rows": rows}
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    (results / f"{name}.md").write_text(markdown(found, plot(found, results, name)))
    print(results / f"{name}.md")
    return 0
