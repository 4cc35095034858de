"""Runs loads against targets and gathers what they found."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from .rows import Row
from .targets import INITIATOR_CPU, Floor, Lunar, Setup, Target, Unavailable

# Seconds until a thousand sessions are logged in, at the slowest target.
CROWD_PATIENCE = 60.0


@dataclass
class Sample:
    """One run of one row on one target."""

    iops: float
    bytes_per_second: float
    p50_us: float
    p99_us: float
    target_us_per_io: float
    initiator_us_per_io: float
    # How many commands ended in one receive of the initiator: how far the target gathers its replies.
    per_receive: float
    # CPU time of everybody else on the machine, as a part of all there was.
    foreign: float


def machine_busy() -> tuple[float, float]:
    """Busy and total CPU ticks of the machine so far."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return float(sum(fields) - idle), float(sum(fields))


def run_initiator(command: list[str], patience: float) -> dict:
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience, check=False)
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(command)}\n{done.stdout[-1000:]}{done.stderr[-1000:]}")
    return json.loads(done.stdout)


def initiator(setup: Setup, url: str, seconds: float, more: list[str]) -> list[str]:
    timing = ["--time", str(seconds), "--warmup", "0.3", "--cpu", str(INITIATOR_CPU), "--json"]
    return [*setup.initiator, url, *timing, *more]


def sample(setup: Setup, target: Target, row: Row, seconds: float) -> Sample | None:
    """One run; None if the target has no such unit."""
    if isinstance(target, Floor):
        return sample_floor(setup, target, row, seconds)
    target.suit(row)
    url = target.url(row.store)
    if url is None:
        return None
    busy_before = target.busy_seconds()
    machine = machine_busy()
    report = run_initiator(initiator(setup, url, seconds, row.load() + target.arguments()), seconds + 60)
    foreign = foreign_part(machine, report)
    if busy_before is not None:
        # Its account covers the whole run: so must the count.
        spent = (target.busy_seconds() - busy_before) * 1e6 / max(report["total_commands"], 1)
    else:
        spent = report["target_busy_us_per_io"] or report["target_cpu_us_per_io"] or 0.0
    return to_sample(report, spent, row, foreign)


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
    """Everybody else's part of the machine: what was busy beyond the initiator and the target."""
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


def middle(samples: list[Sample]) -> dict[str, float]:
    """Medians, and how far apart the runs were."""
    names = asdict(samples[0]).keys()
    result = {name: median(getattr(one, name) for one in samples) for name in names}
    rates = sorted(one.iops for one in samples)
    result["spread"] = (rates[-1] - rates[0]) / result["iops"] if result["iops"] else 0.0
    result["runs"] = len(samples)
    return result


def idle_cpu(target: Target, seconds: float) -> float:
    """Percent of one CPU that the target takes with nobody connected."""
    before, start = target.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    return (target.cpu_seconds() - before) * 100 / (time.monotonic() - start)


def idle_sessions(setup: Setup, target: Target, sessions: int, rounds: int, seconds: float) -> dict:
    """What sessions that only stay cost: memory of each, logins per second, and the loss of a session under load."""
    url = target.url("null")
    load = ["--rw", "randread", "--bs", "4096", "--depth", "32"]
    run = lambda: run_initiator(initiator(setup, url, seconds, load), seconds + 60)["iops"]  # noqa: E731
    # The load alone touches memory, too, and that stays.
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
    """Idle sessions of a process that is stopped once it has more sockets than `idle`: what they cost is the target's
    alone."""
    log = (setup.folder / "crowd.log").open("w+")
    command = initiator(setup, url, 3600, ["--depth", "1", *options])
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        while sockets(process.pid) <= idle:
            if process.poll() is not None or time.monotonic() > start + CROWD_PATIENCE:
                raise Unavailable(f"{' '.join(command)}\n{Path(log.name).read_text()[-1000:]}")
            time.sleep(0.002)
        # The last of them log in.
        time.sleep(0.5)
        process.send_signal(signal.SIGSTOP)
        yield
    finally:
        process.kill()
        process.wait()
        log.close()


def sockets(pid: int) -> int:
    """Sockets that a process has open."""
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(os.readlink(entry))
    return sum(link.startswith("socket:") for link in links)


def memory_of_units(setup: Setup, units: int) -> dict:
    """What Lunar's logical units cost: with one, and with many."""
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
