"""Runs loads on targets and collects the results."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from .rows import KIB, Row
from .targets import INITIATOR_CPU, RAM_BYTES, Floor, Lunar, Setup, Target, Unavailable

# How certain the limits of a median are.
CERTAINTY = 0.9
# The timeout for the logins of a thousand sessions, in seconds.
CROWD_PATIENCE = 60.0
# The longest run that writes the unit in memory, in seconds.
FILL_SECONDS_MAX = 16.0
# The size of the writes that fill a unit in memory: the largest transfer that a vfio-user controller of SPDK offers.
FILL_BYTES = 128 * KIB


@dataclass
class Sample:
    """The result of one run of a row on a target."""

    iops: float
    bytes_per_second: float
    p50_us: float
    p99_us: float
    target_us_per_io: float
    initiator_us_per_io: float
    # Commands that completed per receive of the initiator: shows how many replies the target coalesces.
    per_receive: float
    # The fraction of the host's CPU time that other processes used.
    foreign: float


def machine_busy() -> tuple[float, float]:
    """Busy and total CPU ticks of the host since its start."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return float(sum(fields) - idle), float(sum(fields))


def run_initiator(command: list[str], timeout: float) -> dict:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(command)}\n{done.stdout[-1000:]}{done.stderr[-1000:]}")
    return json.loads(done.stdout)


def initiator(setup: Setup, url: str, seconds: float, more: list[str]) -> list[str]:
    timing = ["--time", str(seconds), "--warmup", "0.3", "--cpu", str(INITIATOR_CPU), "--json"]
    return [*setup.initiator, url, *timing, *more]


def sample(setup: Setup, target: Target, row: Row, seconds: float) -> Sample | None:
    """Measures one run; None if the target has no such unit."""
    if isinstance(target, Floor):
        return sample_floor(setup, target, row, seconds)
    target.prepare(row)
    url = target.url(row.store)
    if url is None:
        return None
    busy_before = target.busy_seconds()
    machine = machine_busy()
    report = run_initiator(initiator(setup, url, seconds, row.load() + target.arguments()), seconds + 60)
    foreign = foreign_part(machine, report)
    if busy_before is not None:
        # The target's own busy time covers the whole run, so all commands of the run are counted.
        spent = (target.busy_seconds() - busy_before) * 1e6 / max(report["total_commands"], 1)
    else:
        spent = report["target_busy_us_per_io"] or report["target_cpu_us_per_io"] or 0.0
    return to_sample(report, spent, row, foreign)


def write_all_memory(setup: Setup, target: Target) -> None:
    """Writes the unit in memory whole: a store of which nothing was ever written has no data to copy."""
    url = None if isinstance(target, Floor) else target.url("ram")
    if url is None:
        return
    seconds, load = 0.5, ["--rw", "write", "--bs", str(FILL_BYTES), "--depth", "8", *target.arguments()]
    while seconds <= FILL_SECONDS_MAX:
        report = run_initiator(initiator(setup, url, seconds, load), seconds + 60)
        # Sequential writes begin at the start of the unit, and count from the first one of the warm-up.
        if report["total_commands"] * FILL_BYTES >= RAM_BYTES:
            return
        seconds *= 2
    raise Unavailable(f"{target.name}: {RAM_BYTES >> 20} MiB are not written within {seconds / 2:.0f} s")


def sample_floor(setup: Setup, target: Floor, row: Row, seconds: float) -> Sample | None:
    if row.store != "null":
        return None
    request, reply = row.messages()
    target.start_for(request, reply, row.spin)
    try:
        machine = machine_busy()
        command = [str(setup.floor), "drive", f"127.0.0.1:{target.port}", "--json", "--pid", str(target.pid)]
        command += ["--request", str(request), "--reply", str(reply), "--depth", str(row.depth)]
        command += ["--sessions", str(row.sessions), "--time", str(seconds), "--warmup", "0.3"]
        command += ["--cpu", str(INITIATOR_CPU), *(["--spin"] if row.spin else [])]
        report = run_initiator(command, seconds + 60)
        return to_sample(report, report["target_cpu_us_per_io"], row, foreign_part(machine, report))
    finally:
        target.stop()


def foreign_part(before: tuple[float, float], report: dict) -> float:
    """The fraction of the CPU time that neither the initiator nor the target used."""
    busy, total = (now - then for now, then in zip(machine_busy(), before))
    cost = report["cost"]
    ours = (cost["initiator_cpu_seconds"] + cost["target_cpu_seconds"]) / (report["seconds"] * os.cpu_count())
    return max(0.0, busy / max(total, 1.0) - ours)


def to_sample(report: dict, spent: float, row: Row, foreign: float) -> Sample:
    latency = report["latency_us"]
    return Sample(
        iops=report["iops"],
        bytes_per_second=report["iops"] * row.bs,
        p50_us=latency["p50"],
        p99_us=latency["p99"],
        target_us_per_io=spent,
        initiator_us_per_io=report["initiator_cpu_us_per_io"],
        per_receive=report["commands_per_receive"],
        foreign=foreign,
    )


def known_between(values: list[float]) -> list[float]:
    """The limits between which the median of a load lies, by runs of it, with the certainty `CERTAINTY`: the closest pair
    of runs that is as certain, or the lowest and the highest run."""
    runs, outside, skipped = sorted(values), 0.0, 0
    while skipped < len(runs) // 2:
        # The probability that so many runs are on one side of the median.
        outside += 2 * math.comb(len(runs), skipped) / 2 ** len(runs)
        if 1 - outside < CERTAINTY:
            break
        skipped += 1
    at = max(skipped - 1, 0)
    return [runs[at], runs[-1 - at]]


def medians(samples: list[Sample]) -> dict[str, float | list[float]]:
    """The medians, the spread of the runs, and how well the medians are known."""
    names = asdict(samples[0]).keys()
    result = {name: median(getattr(one, name) for one in samples) for name in names}
    rates = sorted(one.iops for one in samples)
    result["spread"] = (rates[-1] - rates[0]) / result["iops"] if result["iops"] else 0.0
    result["runs"] = len(samples)
    for name in ("iops", "target_us_per_io"):
        result[f"{name}_between"] = known_between([getattr(one, name) for one in samples])
    return result


def idle_cpu(target: Target, seconds: float) -> float:
    """The CPU time of the target without connections, in percent of one CPU."""
    before, start = target.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    return (target.cpu_seconds() - before) * 100 / (time.monotonic() - start)


def idle_sessions(setup: Setup, target: Target, sessions: int, rounds: int, seconds: float) -> dict:
    """The cost of idle sessions: memory of each, logins per second, and the rate of a session under load."""
    url = target.url("null")
    load = ["--rw", "randread", "--bs", "4096", "--depth", "32"]
    run = lambda: run_initiator(initiator(setup, url, seconds, load), seconds + 60)["iops"]  # noqa: E731
    # Run the load once first: the memory that it uses is not freed.
    run()
    before = target.memory()
    alone, crowded, grown = [], [], 0
    for _ in range(rounds):
        alone.append(run())
        with crowd(setup, url, sessions, ["--idle-sessions", str(sessions)]):
            grown = max(grown, target.memory() - before)
            crowded.append(run())
    full = run_initiator(initiator(setup, url, seconds, [*load, "--idle-sessions", str(sessions)]), seconds + 120)
    return {
        "sessions": sessions,
        "bytes_per_session": grown / sessions,
        "logins_per_second": full["logins"]["per_second"],
        "iops_alone": median(alone),
        "iops_with_idle_sessions": median(crowded),
        "ratio": median(crowded) / median(alone),
    }


@contextlib.contextmanager
def crowd(setup: Setup, url: str, idle: int, options: list[str]):
    """Idle sessions of a process that is paused when it has more than `idle` sockets, so that only the target uses CPU
    time."""
    log = (setup.folder / "crowd.log").open("w+")
    command = initiator(setup, url, 3600, ["--depth", "1", *options])
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        while sockets(process.pid) <= idle:
            if process.poll() is not None or time.monotonic() > start + CROWD_PATIENCE:
                raise Unavailable(f"{' '.join(command)}\n{Path(log.name).read_text()[-1000:]}")
            time.sleep(0.002)
        # Let the last logins finish.
        time.sleep(0.5)
        process.send_signal(signal.SIGSTOP)
        yield
    finally:
        process.kill()
        process.wait()
        log.close()


def sockets(pid: int) -> int:
    """The number of open sockets of a process."""
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(os.readlink(entry))
    return sum(link.startswith("socket:") for link in links)


def memory_of_units(setup: Setup, units: int) -> dict:
    """The memory of Lunar with one logical unit, and with many."""
    sizes = []
    for count in (1, units):
        target = Lunar(setup, ["null:1M"] * count)
        try:
            target.start()
            time.sleep(0.2)
            sizes.append(target.memory())
        finally:
            target.stop()
    return {"units": units, "bytes_with_one": sizes[0], "bytes_per_unit": (sizes[1] - sizes[0]) / (units - 1)}
