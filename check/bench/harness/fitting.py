"""Fits the terms of the model to the kept results, and holds it against every row that was left out."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from . import squares
from .model import MODELS, PROTOCOLS, SLEEP, Load, predict
from .report import SPREAD_MARK

TARGET = "lunar"
# The largest difference between a prediction and the measurement of a row that was left out.
ERROR_MAX = 0.15
# The work of the initiator is fitted, too, because it limits some rows; it counts less than rate and cost of Lunar.
INITIATOR_WEIGHT = 0.5
# Each row gives three errors: rate, work, work of the initiator.
MEASURES = 3
# A row that alone determines a term cannot be left out and predicted.
ALONE = 0.9


@dataclass(frozen=True)
class Measured:
    """A row of the results."""

    title: str
    load: Load
    rate: float
    work: float
    initiator: float
    # The difference of the fastest and the slowest run, as a fraction of the median.
    spread: float
    # The limits between which the medians of rate and work certainly are.
    rate_between: tuple[float, float]
    work_between: tuple[float, float]

    @property
    def weight(self) -> float:
        return SPREAD_MARK / max(SPREAD_MARK, self.spread)


@dataclass(frozen=True)
class Verdict:
    """A row against a prediction that was made without it."""

    row: Measured
    quantity: str
    predicted: float
    measured: float
    # The row alone determines a term, so it cannot be predicted without itself.
    alone: bool

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def fails(self) -> bool:
        """Whether it is off by more than the largest difference, wherever the median of the row is."""
        low, high = self.row.rate_between if self.quantity == "rate" else self.row.work_between
        is_near = low * (1 - ERROR_MAX) <= self.predicted <= high * (1 + ERROR_MAX)
        return not self.alone and not is_near


def load_of(protocol: str, key: str) -> Load:
    """The load of a row, from its key."""
    rw, size, depth, sessions, store, *polling = key.split("-")
    return Load(
        protocol=protocol,
        writes="write" in rw,
        size=int(size),
        depth=int(depth[1:]),
        sessions=int(sessions[1:]),
        store=store,
        polling=polling == ["spin"],
    )


def results(folder: Path) -> tuple[dict[str, list[Measured]], dict[str, dict]]:
    """The rows of Lunar of each protocol, and the files that have them."""
    found: dict[str, list[Measured]] = {name: [] for name in MODELS}
    files = {}
    for protocol in PROTOCOLS:
        # The run with the rows of the model, if there is one, has all rows of the other one, too.
        names = [folder / f"{protocol}{name}.json" for name in ("-model", "")]
        files[protocol] = file = json.loads(next((at for at in names if at.exists()), names[-1]).read_text())
        for row in file["rows"]:
            one = row["targets"].get(TARGET)
            if one:
                rate, title = one["iops"] / 1e6, f"{protocol}: {row['title']}"
                cost, own = one["target_us_per_io"], one["initiator_us_per_io"]
                rates = tuple(limit / 1e6 for limit in one.get("iops_between", [one["iops"]] * 2))
                costs = tuple(one.get("target_us_per_io_between", [cost] * 2))
                load = load_of(protocol, row["key"])
                found[protocol].append(Measured(title, load, rate, cost, own, one["spread"], rates, costs))
    return found, files


def errors_of(protocol: str, rows: list[Measured], others: dict[str, dict[str, float]]):
    """The function of the terms that is to be minimized."""

    def errors(terms: squares.Terms) -> squares.Vector:
        found = []
        for row in rows:
            answer = predict({**others, protocol: terms}, row.load)
            found.append(row.weight * math.log(answer.rate / row.rate))
            found.append(row.weight * math.log(answer.work / row.work))
            own = answer.initiator
            found.append(row.weight * INITIATOR_WEIGHT * math.log(own / row.initiator) if own else 0.0)
        return found

    return errors


def tells_sleep(load: Load) -> bool:
    """Whether both ends of a load wait for each other."""
    return not load.polling and load.outstanding <= 8 and load.size <= 4096


def sleep_terms(files: dict[str, dict]) -> dict[str, float]:
    """The cost of a core that falls asleep: `floor`, which always sleeps, against Lunar at the depths at which both
    wait for each other."""
    waits, works = [], []
    for protocol in ("iscsi", "nvme-tcp"):
        for row in files[protocol]["rows"]:
            load, by = load_of(protocol, row["key"]), row["targets"]
            if TARGET in by and "floor" in by and tells_sleep(load):
                cycles = [load.outstanding / by[name]["iops"] * 1e6 for name in ("floor", TARGET)]
                waits.append(cycles[0] - cycles[1])
                costs = [by[name]["target_us_per_io"] * load.outstanding for name in ("floor", TARGET)]
                works.append(costs[0] - costs[1])
    # A processor that wakes up fast makes `floor` as fast as Lunar: then sleep costs nothing that is measured.
    return dict(zip((term.name for term in SLEEP), (max(0.0, mean(waits)), max(0.0, mean(works)))))


def fit(rows: dict[str, list[Measured]], files: dict[str, dict]) -> dict[str, dict[str, float]]:
    """The terms of all protocols."""
    terms = {"sleep": sleep_terms(files)}
    for protocol, own in rows.items():
        used = [term for term in MODELS[protocol] if any(term.needs(row.load) for row in own)]
        start = {term.name: term.start for term in used}
        terms[protocol] = squares.fit(errors_of(protocol, own, terms), start)
    return terms


def held_out(rows: dict[str, list[Measured]], terms: dict[str, dict[str, float]]) -> list[Verdict]:
    """Leaves out each row in turn, fits the terms to the others, and predicts it."""
    verdicts = []
    for protocol, all_of in rows.items():
        own = squares.leverages(errors_of(protocol, all_of, terms), terms[protocol], MEASURES)
        for at, row in enumerate(all_of):
            others = all_of[:at] + all_of[at + 1 :]
            without = {**terms, protocol: squares.fit(errors_of(protocol, others, terms), terms[protocol])}
            answer = predict(without, row.load)
            pairs = zip(("rate", "work"), (answer.rate, answer.work), (row.rate, row.work))
            verdicts += [Verdict(row, *one, alone=own[at] > ALONE) for one in pairs]
    return verdicts
