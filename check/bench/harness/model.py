"""The performance model of Lunar: a closed loop of an initiator, a link and one serving core.

All times are in microseconds for one command, all rates in commands per microsecond, unless the name says otherwise.
A cycle is the time in which all outstanding commands complete once. The cycle is as long as the longest of: one wait
(wake-up of the peer, network, store) and the commands that are processed one after the other within it; the work of the
core for all commands; the work of the initiator; the bytes on the link.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

# Headers of a command and of its answer, in bytes.
HEADERS = 48
# Writes of more bytes wait for R2Ts: FirstBurstLength of iSCSI, the in-capsule data of NVMe/TCP.
UNSOLICITED_MAX = {"iscsi": 64 << 10, "nvme-tcp": 16 << 10}
# The size of the first-level data cache, which holds the data of the commands of a queue while they are few.
CACHE = 32 << 10
# About as many bytes of replies leave in one turn, and are received at once.
BURST = 128 << 10
# The size of the commands by which the cost of a store over TCP is measured.
MEASURED = 4 << 10
# How sharply the longest part of a cycle dominates the others.
SHARP = 6
# Commands of a batch and of a session meet more sharply.
SHARPER = 8
# The share of a link with 1,500-byte frames that is left for TCP payload, with acknowledgements.
LINK_SHARE = 0.94
BITS = 8
# Enough to settle the idle time of the core, of which half is corrected each time.
SETTLE = 30


PROTOCOLS = {"iscsi": "stream", "nvme-tcp": "stream", "vfio-user": "shared-memory"}


@dataclass(frozen=True)
class Load:
    """A load, and the machine and network that carry it."""

    protocol: str
    writes: bool
    size: int
    depth: int
    sessions: int = 1
    store: str = "null"
    polling: bool = False
    # An additional wait of each command in the store, and additional work of the core for it.
    store_wait: float = 0.0
    store_work: float = 0.0
    # The round trip of the network beyond that of the loopback.
    network: float = 0.0
    # The rate of the link in Gbit/s; 0: no limit.
    link: float = 0.0
    cores: int = 1
    # Machines that send the load; 0: their work is no limit.
    hosts: int = 1
    # How long a core polls before it sleeps (`spin`).
    spin: float = 100.0

    @property
    def kind(self) -> str:
        return PROTOCOLS[self.protocol]

    @property
    def outstanding(self) -> int:
        return self.depth * self.sessions


@dataclass(frozen=True)
class Term:
    """A fitted term."""

    name: str
    start: float
    unit: str
    meaning: str
    # The loads whose rows determine the term, if not all of them do.
    needs: Callable[[Load], bool] = lambda _: True


STREAM = [
    Term("command", 0.25, "us", "work of the core for a command"),
    Term("byte", 1e-4, "us", "work of the core for a byte of payload over TCP"),
    Term("turn", 4.0, "us", "work of the core for a turn: look for events, receive, send"),
    Term("wake-peer", 1.0, "us", "additional work of a turn that wakes a sleeping initiator"),
    Term("lock-step", 0.2, "us", "additional work for a command while the core waits part of the time"),
    Term("r2t", 3.0, "us", "work for the R2Ts of a write that is longer than the first burst"),
    Term("ram-read", 0.7, "us", "RAM store: a read of 4 KiB"),
    Term("ram-write", 0.9, "us", "RAM store: a write of 4 KiB"),
    Term("file-read", 3.0, "us", "file store, data in the page cache: a read of 4 KiB", lambda load: load.store == "file"),
    Term("session", 0.5, "", "work of a turn for each further session, as a share of that for one", lambda load: load.sessions > 1),
    Term("wake-up", 22.0, "us", "wait of a cycle: the wake-up of a sleeping initiator, and the loopback"),
    Term("pipelined", 0.3, "", "share of the outstanding commands that are at the core when both ends are busy"),
    Term("initiator", 0.2, "us", "work of `lunar bench` for a command"),
    Term("initiator-turn", 6.5, "us", "work of `lunar bench` for a turn with sleep and wake-up"),
    Term("initiator-byte-read", 0.7e-4, "us", "work of `lunar bench` for a byte that is read"),
    Term("initiator-byte-write", 1.2e-4, "us", "work of `lunar bench` for a byte that is written"),
]
SHARED = [
    Term("command", 0.18, "us", "work of the core for a command"),
    Term("turn", 3.7, "us", "work of the core for a turn with an interrupt and a doorbell message"),
    Term("zero", 1.2e-5, "us", "null store: a byte of zeroes into guest memory"),
    Term("zero-more", 5e-6, "us", "what is added to that for each doubling of the data of a queue beyond 32 KiB"),
    Term("lock-step", 0.1, "us", "additional work for a command while the core waits part of the time"),
    Term("ram-read", 0.2, "us", "RAM store: a read"),
    Term("ram-write", 0.5, "us", "RAM store: a write"),
    Term("copy", 1e-4, "us", "RAM store: a byte"),
    Term("round-trip", 0.4, "us", "wait of a cycle with a polling guest"),
    Term("wake-up", 23.0, "us", "wait of a cycle with a guest that sleeps until the interrupt"),
]
# Terms of a core that sleeps between two commands, from the rows of `floor`, which always sleeps.
SLEEP = [
    Term("sleep-wait", 0.0, "us", "additional wait of a cycle in which the core falls asleep"),
    Term("sleep-work", 0.0, "us", "additional work of the core in such a cycle"),
]
# The terms of each protocol, in the order in which they are fitted: the others use terms of the first ones.
MODELS = {"vfio-user": SHARED, "iscsi": STREAM, "nvme-tcp": STREAM}


@dataclass(frozen=True)
class Answer:
    """A prediction."""

    # Commands per microsecond.
    rate: float
    # Work of the serving cores for a command.
    work: float
    # Work of the initiator for a command; None where the model does not know it: a polling one is always busy.
    initiator: float | None
    # The part of the cycle that decides.
    limit: str
    # The share of the time in which the serving cores work.
    busy: float


def longest(*parts: float, sharp: float = SHARP) -> float:
    """The longest part, and somewhat more where two are nearly equal."""
    top = max(parts)
    return top * sum((part / top) ** sharp for part in parts) ** (1 / sharp) if top else 0.0


def shortest(*parts: float, sharp: float) -> float:
    return 1 / longest(*(1 / part for part in parts), sharp=sharp)


# Terms in microseconds that a faster core does not shorten.
WAITS = ("wake-up", "sleep-wait")


def scaled(terms: dict[str, dict[str, float]], speed: float) -> dict[str, dict[str, float]]:
    """The terms of a machine whose cores are `speed` times as fast."""
    units = {term.name: term.unit for term in (*STREAM, *SHARED, *SLEEP)}
    by = lambda name: speed if units[name] == "us" and name not in WAITS else 1.0  # noqa: E731
    return {kind: {name: value / by(name) for name, value in of_kind.items()} for kind, of_kind in terms.items()}


def predict(terms: dict[str, dict[str, float]], load: Load) -> Answer:
    """The rate and the cost of a load."""
    each = Share(load)
    answer = stream(terms, each) if load.kind == "stream" else shared_memory(terms, each)
    rate = answer.rate * each.cores
    link = load.link * 1e9 / BITS * LINK_SHARE / (load.size + HEADERS) / 1e6
    if load.link and rate > link:
        return Answer(link, answer.work, answer.initiator, "link", answer.busy * link / rate)
    return Answer(rate, answer.work, answer.initiator, answer.limit, answer.busy)


class Share:
    """The part of a load that one core serves: a session, a queue or a controller stays on its core."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.cores = min(load.cores, load.sessions)
        self.depth = load.depth
        self.outstanding = load.outstanding / self.cores
        self.sessions = load.sessions / self.cores
        self.initiators = load.hosts / self.cores if load.hosts else 0.0


def stream(all_terms: dict[str, dict[str, float]], share: Share) -> Answer:
    load, terms = share.load, all_terms[share.load.protocol]
    count, size = share.outstanding, load.size
    work = terms["command"] + terms["byte"] * size + load.store_work + stream_store(all_terms, load)
    at_once = BURST / (size + HEADERS)
    most = max(at_once, 1.0) if load.writes else at_once
    direction = "write" if load.writes else "read"
    own = terms["initiator"] + terms[f"initiator-byte-{direction}"] * size

    def batch(idle: float) -> float:
        # Commands at the core, and the sessions that they belong to.
        here = 1 + (count - 1) * (idle + (1 - idle) * terms["pipelined"])
        sessions = shortest(share.sessions, here, sharp=SHARPER) if share.sessions > 1 else 1.0
        turns = 1 + terms["session"] * (sessions - 1)
        return shortest(here, most * sessions, sharp=SHARP / 2) / turns

    waits = load.store_wait + load.network
    if load.polling:
        cost = work + terms["turn"] / batch(0.0)
        parts = {"core": count * cost, "depth": 2 * cost + waits}
        return answer(count, longest(*parts.values(), sharp=64), cost, None, parts)
    awake = settle(terms, share, Costs(work, own, terms["wake-up"] + waits, 0.0, batch))
    # The core falls asleep if it finds nothing between two turns for longer than it polls.
    if (1 - awake.busy) / awake.rate * min(count, batch(1 - awake.busy)) <= load.spin:
        return awake
    sleep = all_terms["sleep"]
    wait = terms["wake-up"] + waits + sleep["sleep-wait"]
    return settle(terms, share, Costs(work, own, wait, sleep["sleep-work"], batch))


@dataclass(frozen=True)
class Costs:
    """The costs of a load over a byte stream, in microseconds."""

    # Work of the core and of the initiator for a command, without that for turns.
    work: float
    initiator: float
    # The wait of a cycle.
    wait: float
    # Additional work of the core for a turn.
    turn: float
    # The commands of a turn, from the share of the time in which the core waits.
    batch: Callable[[float], float]


def settle(terms: dict[str, float], share: Share, costs: Costs) -> Answer:
    """The cycle of a load whose initiator sleeps: how much the core waits changes how many commands a turn has, and
    that changes how much it waits."""
    count, at_once = share.outstanding, BURST / (share.load.size + HEADERS)
    idle, cycle, cost, initiator = 0.8, 0.0, 0.0, 0.0
    parts: dict[str, float] = {}
    for _ in range(SETTLE):
        batch = costs.batch(idle)
        cost = costs.work + (terms["turn"] + costs.turn + terms["wake-peer"] * idle) / batch + terms["lock-step"] * idle
        initiator = costs.initiator + terms["initiator-turn"] / batch
        parts = {"depth": costs.wait + shortest(count, at_once, sharp=SHARP - 2) * cost, "core": count * cost}
        cycle = longest(*parts.values())
        if share.initiators:
            parts["initiator"] = count * initiator / share.initiators
            cycle = longest(cycle, parts["initiator"], sharp=SHARPER)
        idle = (idle + max(0.0, 1 - count * cost / cycle)) / 2
    return answer(count, cycle, cost, initiator, parts)


def stream_store(all_terms: dict[str, dict[str, float]], load: Load) -> float:
    """The work of the core for the store, and for R2Ts."""
    own = all_terms[load.protocol]
    is_solicited = load.writes and load.size > UNSOLICITED_MAX.get(load.protocol, math.inf)
    store = own["r2t"] if is_solicited else 0.0
    if load.store == "null":
        return store
    # A store without rows over this protocol costs what it costs over iSCSI. The kernel hands writes into the page cache
    # to threads of its own at some depths: a write of the file store is taken to cost what a read costs.
    terms = {**all_terms["iscsi"], **own}
    name = f"{load.store}-{'write' if load.writes else 'read'}"
    store += terms.get(name, terms[f"{load.store}-read"])
    return store + all_terms["vfio-user"]["copy"] * max(0, load.size - MEASURED)


def shared_memory(all_terms: dict[str, dict[str, float]], share: Share) -> Answer:
    load, terms = share.load, all_terms["vfio-user"]
    count, size = share.outstanding, load.size
    work = terms["command"] + load.store_work
    if load.store == "ram":
        work += terms["ram-write" if load.writes else "ram-read"] + terms["copy"] * size
    elif load.store == "file":
        work += stream_store(all_terms, load)
    elif not load.writes:
        work += size * (terms["zero"] + terms["zero-more"] * doublings(share.depth * size / CACHE))
    waits = load.store_wait + load.network
    if load.polling:
        parts = {"depth": work + terms["lock-step"] + terms["round-trip"] + waits, "core": count * work}
        cycle = longest(*parts.values(), sharp=SHARPER)
        return answer(count, cycle, work + terms["lock-step"] * max(0.0, 1 - count * work / cycle), None, parts)
    # A guest that sleeps until the interrupt sends nothing while the core works: the parts follow one another.
    cost = work + terms["turn"] / count
    parts = {"depth": terms["wake-up"] + terms["turn"] + waits, "core": count * work}
    return answer(count, sum(parts.values()), cost, None, parts)


def doublings(ratio: float) -> float:
    doubled = 0.0
    while ratio >= 2:
        ratio /= 2
        doubled += 1
    return doubled + max(0.0, ratio - 1)


def answer(count: float, cycle: float, work: float, initiator: float | None, parts: dict[str, float]) -> Answer:
    limit = max(parts, key=lambda name: parts[name])
    return Answer(count / cycle, work, initiator, limit, min(1.0, count * work / cycle))
