"""The loads of the benchmark."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True)
class Row:
    """A load: a row of the table."""

    group: str
    rw: str
    bs: int
    depth: int
    sessions: int = 1
    store: str = "null"
    spin: bool = False
    # The unit of `sessions`.
    what: str = "sessions"

    @property
    def writes(self) -> bool:
        return "write" in self.rw

    @property
    def title(self) -> str:
        unit, name = next(pair for pair in ((MIB, "MiB"), (KIB, "KiB"), (1, "B")) if self.bs >= pair[0])
        size = f"{self.bs // unit} {name}"
        words = {"randread": "random read", "randwrite": "random write", "read": "read", "write": "write"}[self.rw]
        parts = [f"{size} {words}", f"depth {self.depth}"]
        if self.sessions > 1:
            parts.append(f"{self.sessions} {self.what}")
        if self.store != "null":
            parts.append(self.store)
        if self.spin:
            parts.append("polling initiator")
        return ", ".join(parts)

    @property
    def key(self) -> str:
        spin = "-spin" if self.spin else ""
        return f"{self.rw}-{self.bs}-d{self.depth}-s{self.sessions}-{self.store}{spin}"

    def load(self) -> list[str]:
        """The options of the initiator."""
        options = ["--rw", self.rw, "--bs", str(self.bs), "--depth", str(self.depth), "--sessions", str(self.sessions)]
        return options + (["--spin"] if self.spin else [])

    def messages(self) -> tuple[int, int]:
        """The payload of request and reply of the floor, in bytes."""
        return (self.bs, 0) if self.writes else (0, self.bs)


def rows() -> list[Row]:
    small = [Row("small", "randread", 512, depth) for depth in (1, 32, 128)]
    small += [Row("small", "randread", 512, depth, spin=True) for depth in (1, 32, 128)]
    page = [Row("page", rw, 4 * KIB, 32, sessions) for sessions in (1, 4) for rw in ("randread", "randwrite")]
    page += [Row("page", "randread", 4 * KIB, 32, spin=True)]
    curve = [Row("curve", "randread", 4 * KIB, depth) for depth in (1, 2, 4, 8, 16, 64, 128)]
    large = [Row("large", rw, bs, 8) for bs in (128 * KIB, MIB) for rw in ("read", "write")]
    stores = [Row("stores", rw, 4 * KIB, 32, n, store="ram") for n in (1, 4) for rw in ("randread", "randwrite")]
    stores += [Row("stores", rw, bs, 8, store="ram") for bs in (128 * KIB, MIB) for rw in ("read", "write")]
    stores += [Row("stores", "randread", 4 * KIB, 32, store="file")]
    return small + page + curve + large + stores


def curve(measured: list[Row]) -> list[Row]:
    """The rows of the depth curve, in its order."""
    # If rows with a polling initiator exist in the curve, it consists of them.
    spin = {row.spin for row in measured if row.group == "curve"} == {True}
    fits = [r for r in measured if (r.rw, r.bs, r.sessions, r.store, r.spin) == ("randread", 4 * KIB, 1, "null", spin)]
    return sorted(fits, key=lambda row: row.depth)


def with_model(protocol: str, known: list[Row]) -> list[Row]:
    """The rows of a protocol, and those that the performance model needs in addition: each term in two rows at least,
    at sizes and depths between those that are known."""
    page = 4 * KIB
    if protocol == "vfio-user":
        more = [Row("model", "randread", page, depth) for depth in (2, 8, 128)]
        more += [Row("model", "randwrite", page, depth, spin=True) for depth in (1, 128)]
        more += [Row("model", "randwrite", page, depth, store="ram", spin=True) for depth in (1, 128)]
        more += [Row("model", rw, 16 * KIB, 32, store="ram", spin=True) for rw in ("randread", "randwrite")]
    else:
        more = [Row("model", "randread", page, depth) for depth in (2, 4, 16, 64)]
        more += [Row("model", "randwrite", page, depth) for depth in (1, 8, 128)]
        more += [Row("model", rw, size, 8) for size in (16 * KIB, 64 * KIB, 256 * KIB, MIB) for rw in ("read", "write")]
        more += [Row("model", "randread", page, depth, store="file") for depth in (1, 8, 32, 128)]
        more += [Row("model", rw, 64 * KIB, 8, store="ram") for rw in ("read", "write")]
        more += [Row("model", "read", 64 * KIB, 8, store="file")]
        more += [Row("model", "randread", page, depth, store="ram") for depth in (1, 128)]
    there = {row.key for row in known}
    return known + [row for row in more if row.key not in there]
