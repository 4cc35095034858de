"""The pages of the performance model: the kept terms, the report of its check, the tables of docs/sizing.md."""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import replace
from pathlib import Path

from .fitting import ERROR_MAX, Verdict
from .model import MODELS, SLEEP, Load, predict
from .report import WIDTH, table
from .rows import KIB, MIB

Terms = dict[str, dict[str, float]]
LIMITS = {
    "depth": "the time until the answers are back: more outstanding commands give a higher rate",
    "core": "the serving cores: they work all the time",
    "initiator": "the machine that sends the load",
    "link": "the link",
}
# A file store or a device behind the page cache costs the core about as much for each command as the measured file.
DEVICE = {"store": "file"}
STORES = [
    ("page cache", 0.0),
    ("NVMe SSD", 80.0),
    ("SATA SSD", 300.0),
    ("network volume", 1000.0),
    ("hard disk", 8000.0),
]
DEPTHS = (1, 4, 16, 64, 256)
LINKS = (1.0, 10.0, 25.0, 100.0)
SIZES = ((4 * KIB, "4 KiB"), (64 * KIB, "64 KiB"), (MIB, "1 MiB"))
# A load that keeps a core busy, sent by enough machines.
FULL = {"depth": 32, "sessions": 8, "hosts": 0}
# A term that differs by less is the same: a fit finds some that are nothing, in µs.
NOTHING = 1e-7
# The round trip of a 10 or 25 Gbit/s network with one switch, with interrupts, beyond that of the loopback.
NETWORK = 30.0
MARK = re.compile(r"(<!-- model: (\w+) -->\n).*?(<!-- model end -->)", re.DOTALL)


def rate(per_second: float) -> str:
    if per_second >= 1e6:
        return f"{per_second / 1e6:.2f} M"
    return f"{per_second / 1e3:.0f} K" if per_second >= 1e4 else f"{float(f'{per_second:.2g}'):,.0f}"


def wait(microseconds: float) -> str:
    if microseconds < 1000:
        return f"{microseconds:.0f} µs"
    return f"{microseconds / 1000:.0f} ms" if microseconds >= 1e4 else f"{microseconds / 1000:.1f} ms"


def kept(files: dict[str, dict], terms: Terms) -> dict:
    """The file of the terms."""
    return {"machine": machine(files), "terms": terms}


def machine(files: dict[str, dict]) -> dict:
    """The machines of the results, and the dates."""
    all_of = lambda name: " or ".join(sorted({str(file["machine"][name]) for file in files.values()}))  # noqa: E731
    names = ("processor", "cpus", "kernel", "congestion")
    return {**{name: all_of(name) for name in names}, "dates": {protocol: file["machine"]["date"] for protocol, file in files.items()}}


def terms_table(terms: Terms) -> list[str]:
    body = []
    for kind, of_kind in (*MODELS.items(), ("sleep", SLEEP)):
        for term in of_kind:
            if term.name not in terms[kind]:
                continue
            value = terms[kind][term.name]
            shown = f"{value * 1000:.3f} ns" if value < 0.01 and term.unit else f"{value:.2f} {term.unit}".strip()
            body.append([kind, f"`{term.name}`", shown.replace(" us", " µs"), term.meaning])
    head = ["| protocol | term | value | meaning |", "| --- | --- | ---: | --- |"]
    return head + ["| " + " | ".join(row) + " |" for row in body]


def verdict_row(verdict: Verdict) -> list[str]:
    rates = verdict.quantity == "rate"
    show = (lambda value: rate(value * 1e6)) if rates else (lambda value: f"{value:.3f} µs")
    names = {"rate": "commands per second", "work": "work of the core"}
    if verdict.alone:
        judged = "alone"
    elif verdict.fails:
        judged = "**off**"
    else:
        judged = "unsteady" if abs(verdict.error) > ERROR_MAX else ""
    error = f"{verdict.error:+.0%}"
    return [verdict.row.title, names[verdict.quantity], show(verdict.predicted), show(verdict.measured), error, judged]


def verdict_lines(verdicts: list[Verdict]) -> list[str]:
    """The result of the check, for a terminal."""
    lines = []
    for verdict in verdicts:
        title, quantity, predicted, measured, error, judged = verdict_row(verdict)
        lines.append(f"{title:<68} {quantity:<20} {predicted:>10} {measured:>10} {error:>6} {judged.strip('*')}")
    return [*lines, summary(verdicts)]


def summary(verdicts: list[Verdict]) -> str:
    judged = [verdict for verdict in verdicts if not verdict.alone]
    rows = {verdict.row.title for verdict in judged}
    off = [verdict for verdict in judged if verdict.fails]
    beyond = sum(abs(verdict.error) > ERROR_MAX for verdict in judged)
    return (
        f"{len(rows)} rows were left out and predicted, {len(judged)} numbers in all: {len(judged) - beyond} within "
        f"{ERROR_MAX:.0%}, {beyond} beyond it. {len(off)} of these, in {len({one.row.title for one in off})} rows, are "
        f"off wherever the median of the row is."
    )


REPORT = """Made by `check/bench/model fit` from the results of {dates}: {processor}, {cpus} CPUs, Linux {kernel}.
The model is `check/bench/harness/model.py`; its terms are in [model.json](model.json), and the tables of
[sizing](../../../docs/sizing.md) follow from them."""
CHECK = """Each row is left out in turn, the terms are fitted to the other rows, and the row is predicted. A prediction
is off if it differs by more than {limit} from each value that the median of the row may have: with a certainty of 90%,
the median of five runs lies between the lowest and the highest run. One that differs by more than that from the measured
median only is marked as unsteady. A row that alone determines a term cannot be predicted without itself (marked: alone)."""


def report(files: dict[str, dict], terms: Terms, verdicts: list[Verdict]) -> str:
    about = machine(files)
    dates = ", ".join(sorted(set(about["dates"].values())))
    intro = REPORT.format(**{**about, "dates": dates})
    lines = ["# The performance model", "", textwrap.fill(intro, WIDTH), "", "## Terms", "", *terms_table(terms)]
    lines += ["", "## Rows that were left out", "", textwrap.fill(CHECK.format(limit=f"{ERROR_MAX:.0%}"), WIDTH), ""]
    head = ["row", "number", "predicted", "measured", "difference", ""]
    lines += [textwrap.fill(summary(verdicts), WIDTH), "", *table(head, [verdict_row(one) for one in verdicts])]
    return "\n".join(lines) + "\n"


def busy_load(protocol: str, size: int, writes: bool, store: str) -> Load:
    return Load(protocol=protocol, writes=writes, size=size, store=store, polling=protocol == "vfio-user", **FULL)


def cores_table(terms: Terms) -> list[str]:
    """The work of a core for a command, and the most commands per second of one core."""
    body = []
    for protocol in ("iscsi", "nvme-tcp", "vfio-user"):
        for size, name in SIZES[:2]:
            for writes in (False, True):
                row = [protocol, f"{name} {'write' if writes else 'read'}"]
                for store in ("null", "ram", "file"):
                    load = busy_load(protocol, size, writes, store)
                    if not_measured(load):
                        row += ["", ""]
                        continue
                    answer = predict(terms, load)
                    row += [f"{answer.work:.2f}", rate(answer.rate * 1e6)]
                body.append(row)
    pairs = [(f"{store}: µs", "per second") for store in ("null", "RAM", "file in the page cache")]
    return table(["transport", "command", *(name for pair in pairs for name in pair)], body)


def depths_table(terms: Terms) -> list[str]:
    """Commands per second and latency by the latency of the store and the commands outstanding."""
    body = []
    for name, latency in STORES:
        row = [f"{name} ({wait(latency)})" if latency else name]
        for depth in DEPTHS:
            load = Load("iscsi", False, 4 * KIB, depth, store_wait=latency, network=NETWORK, hosts=0, **DEVICE)
            answer = predict(terms, load)
            row.append(f"{rate(answer.rate * 1e6)}, {wait(depth / answer.rate)}")
        body.append(row)
    return table(["store", *(f"depth {depth}" for depth in DEPTHS)], body)


def links_table(terms: Terms) -> list[str]:
    """The most that a link carries, and the cores that are busy with it."""
    body = []
    for link in LINKS:
        row = [f"{link:.0f} Gbit/s"]
        for size, _ in SIZES:
            load = replace(busy_load("iscsi", size, False, "null"), link=link, cores=FULL["sessions"])
            answer = predict(terms, load)
            busy = answer.rate * answer.work
            row.append(f"{rate(answer.rate * 1e6)}, {answer.rate * size:,.0f} MB/s, {busy:.2f} cores")
        body.append(row)
    return table(["link", *(f"{name} reads" for _, name in SIZES)], body)


def short(terms: Terms) -> list[str]:
    """A core in one sentence."""
    page = predict(terms, busy_load("iscsi", 4 * KIB, False, "file")).rate * 1e6
    large = predict(terms, busy_load("iscsi", MIB, False, "null")).rate * MIB / 1e3
    return [
        f"* One core serves {round(page, -4):,.0f} reads of 4 KiB per second from files in the page cache over iSCSI, or",
        f"  moves {large:.0f} GB/s of large reads if the store is fast enough.",
    ]


def speed(terms: Terms) -> list[str]:
    """How the speed of another machine follows from a measurement."""
    work = predict(terms, Load("iscsi", False, 4 * KIB, 32)).work
    return [f"The model says {work:.2f} for this load, so `--speed` is {work:.2f} divided by the measured value."]


TABLES = {
    "short": short,
    "speed": speed,
    "cores": cores_table,
    "depths": depths_table,
    "links": links_table,
}


def with_tables(page: str, terms: Terms) -> str:
    """The page with its tables made anew."""
    return MARK.sub(lambda mark: mark[1] + "\n".join(TABLES[mark[2]](terms)) + "\n" + mark[3], page)


def stale(kept_file: Path, sizing: Path, files: dict[str, dict], terms: Terms, same: float) -> list[str]:
    """The files that are not those of the results."""
    if not kept_file.exists():
        return [f"{kept_file} is missing"]
    there = json.loads(kept_file.read_text())
    old = there["terms"]
    if there["machine"] != machine(files) or {kind: set(one) for kind, one in old.items()} != {
        kind: set(one) for kind, one in terms.items()
    }:
        return [f"{kept_file} belongs to other results"]
    moved = [
        f"{kind} {name}"
        for kind, of_kind in terms.items()
        for name, value in of_kind.items()
        if abs(old[kind][name] - value) > same * abs(value) + NOTHING
    ]
    found = [f"{kept_file} is not what the results give ({', '.join(moved)})"] if moved else []
    page = sizing.read_text()
    if with_tables(page, old) != page:
        found.append(f"{sizing} is not what {kept_file.name} gives")
    return found


def spoken(load: Load, found: dict) -> list[str]:
    """A prediction, for a terminal."""
    lines = [
        f"{rate(found['iops'])} commands per second, {found['bytes_per_second'] / 1e6:,.0f} MB/s",
        f"{wait(found['mean_latency_us'])} mean latency with {load.outstanding} commands outstanding",
        f"{found['busy_cores']:.2f} cores busy, {found['core_us_per_command']:.2f} µs for each command",
        f"limited by {LIMITS[found['limit']]}",
    ]
    if need := found.get("needed"):
        plural = "core" if need["cores"] == 1 else "cores"
        if need["reached"]:
            lines.append(f"that rate needs {need['cores']} {plural} and depth {need['depth']} in each of the sessions")
        else:
            lines.append(f"that rate is not reached with {need['cores']} {plural}: limited by {LIMITS[need['limit']]}")
    if unmeasured := not_measured(load):
        lines.append(f"computed, but never measured: {', '.join(unmeasured)}")
    return lines


def store_is_measured(load: Load) -> bool:
    """Whether the kept results have rows of this store with commands like these."""
    if load.kind == "shared-memory":
        # The null store takes a write without looking at it: its rate means nothing for long writes.
        return load.store == "ram" or (load.store == "null" and load.size <= 4 * KIB)
    return load.store == "null" or (load.size == 4 * KIB and (load.store == "ram" or not load.writes))


def not_measured(load: Load) -> list[str]:
    """The parts of a prediction that no kept result tests."""
    parts = {
        "several cores": load.cores > 1,
        "the network": load.network > 0,
        "the link": load.link > 0,
        "the latency of the store": load.store_wait > 0,
        "this store with this command": not store_is_measured(load),
    }
    return [name for name, applies in parts.items() if applies]
