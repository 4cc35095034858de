"""Measures Lunar, other targets and the floor; writes tables and plots to check/bench/results/."""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from harness import (  # noqa: E402
    ethernet,
    fitting,
    handler,
    measure,
    network,
    nvme,
    offload,
    report,
    rows,
    tape,
    targets,
    vfio,
    vhost,
    vhost_scsi,
)
from harness.rows import Row  # noqa: E402
from harness.targets import Floor, Setup, Target, Unavailable  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
IDLE_SESSIONS = 1000
UNITS = 4096
IDLE_SECONDS = 10.0
INTERRUPTED = "interrupted"
# The targets and loads of each protocol.
PROTOCOLS = {
    "iscsi": (targets.KINDS, rows.rows),
    "nvme-tcp": (nvme.KINDS, nvme.rows),
    "vfio-user": (vfio.KINDS, vfio.rows),
    "vhost-user": (vhost.KINDS, vhost.rows),
    "vhost-scsi": (vhost_scsi.KINDS, vhost_scsi.rows),
    "ethernet": (ethernet.KINDS, ethernet.rows),
    "handler": (handler.KINDS, handler.rows),
    "handler-vfio-user": (handler.VFIO_USER_KINDS, handler.rows),
    "tape": (tape.KINDS, tape.rows),
}
# The targets whose rows the performance model uses.
MODEL_TARGETS = ("lunar", "floor")
# Those without idle sessions and memory of units.
ROWS_ONLY = ("vhost-scsi", "ethernet", "handler", "handler-vfio-user", "tape")
# Protocols with additional measurements of their own.
EXTRAS = {"nvme-tcp": nvme.extras, "vfio-user": vfio.extras, "vhost-user": vhost.extras}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="check/bench/run", description=__doc__)
    parser.add_argument("--protocol", choices=PROTOCOLS, default="iscsi", help="[%(default)s]")
    parser.add_argument("--name", help="name of the result files [the protocol; with --offload: offload]")
    parser.add_argument("--rounds", type=int, default=5, help="runs of every row on every target [%(default)s]")
    parser.add_argument("--time", type=float, default=1.5, help="seconds of each run [%(default)s]")
    parser.add_argument("--rows", default="*", help="rows whose key matches this shell pattern (see --list)")
    parser.add_argument("--targets", help=f"targets to measure [{','.join(targets.KINDS)}]")
    parser.add_argument("--driver", default="auto", help="Lunar's driver: auto, io_uring, epoll")
    parser.add_argument(
        "--congestion", default="cubic", help="TCP congestion control (needs root; otherwise that of the host) [%(default)s]"
    )
    parser.add_argument("--mtu", type=int, default=1500, help="with --protocol ethernet: that of the link [%(default)s]")
    parser.add_argument("--no-offloads", action="store_true", help="with --protocol ethernet: segmentation and checksums by the CPU")
    parser.add_argument("--folder", type=Path, help="folder of the file store [the system's temporary folder]")
    parser.add_argument("--no-extras", action="store_true", help="skip idle CPU time, idle sessions and memory of units")
    parser.add_argument("--no-build", action="store_true", help="measure the present build")
    parser.add_argument("--offload", action="store_true", help="measure copies by the target instead (needs root)")
    parser.add_argument(
        "--offload-sizes",
        default="xfs=10,ext4=1,tmpfs=2",
        help="file systems for --offload, each with the GiB to copy [%(default)s]",
    )
    parser.add_argument(
        "--model", action="store_true", help="with the rows of the performance model; measures Lunar and the floor only"
    )
    parser.add_argument("--list", action="store_true", help="list the keys of the rows")
    return parser.parse_args()


def setup(folder: Path, driver: str) -> Setup:
    built = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    lunar = Path(os.environ.get("LUNAR_BENCH_LUNAR", built / "trained" / "release" / "lunar"))
    floor = Path(os.environ.get("LUNAR_BENCH_FLOOR", built / "release" / "floor"))
    initiator = os.environ.get("LUNAR_BENCH_INITIATOR")
    return Setup(folder, lunar, floor, shlex.split(initiator) if initiator else [str(lunar), "bench"], driver)


def started(
    kinds: list[type[Target]], how: Setup, fills: bool, stack: contextlib.ExitStack
) -> tuple[list[Target], dict[str, str]]:
    """The available targets, started and paused, and the reasons why the others are not available. `fills`: with
    their units in memory written whole."""
    found, missing = [], {}
    for kind in kinds:
        target = kind(how)
        stack.callback(target.stop)
        try:
            target.start()
            if fills:
                measure.write_all_memory(how, target)
            target.pause()
            found.append(target)
        except Unavailable as why:
            target.stop()
            missing[target.name] = str(why)
            print(f"{target.name} is skipped: {why}", file=sys.stderr)
    return found, missing


@contextlib.contextmanager
def running(target: Target):
    """Resumes one target."""
    target.resume()
    try:
        yield
    finally:
        target.pause()


def schedule(
    rounds: int, chosen: list[Row], all_of: list[Target], is_wanted: Callable[[Row, Target], bool]
) -> Iterator[tuple[int, Row, Target, bool]]:
    """The order of runs, and whether each counts. The first run of a load is slower, because the host of a virtual
    machine has to allocate memory for it: so each row starts with a run that does not count, and each round starts with
    another target."""
    for number in range(1, rounds + 1):
        for at, row in enumerate(chosen):
            wanted = [target for target in all_of if is_wanted(row, target)]
            if not wanted:
                continue
            first = (number + at) % len(wanted)
            yield number, row, wanted[first], False
            for target in wanted[first:] + wanted[:first]:
                yield number, row, target, True


def wanted_by_model(row: Row, target: Target) -> bool:
    """The model takes the cost of sleep from the rows of the floor, and nothing else."""
    return target.name != "floor" or fitting.tells_sleep(fitting.load_of("iscsi", row.key))


def run_once(
    how: Setup, row: Row, target: Target, seconds: float, failed: list[str] | None
) -> measure.Sample | None:
    """Measures a row on a target once. `failed`: for the reason if it fails, unless the run does not count."""
    with running(target):
        try:
            return measure.sample(how, target, row, seconds)
        except Unavailable as why:
            if failed is not None:
                failed.append(f"{target.name}, {row.title}: {str(why).strip().splitlines()[-1]}")
            print(f"{target.name}, {row.title}: {why}", file=sys.stderr)
            return None


def measure_rows(
    how: Setup, order: Iterator[tuple[int, Row, Target, bool]], chosen: list[Row], rounds: int, seconds: float
) -> tuple[dict, list[str]]:
    """Measures every row on every target, round by round, so that changes of the host affect all targets alike.
    Returns the medians and the failed runs. An interrupted measurement has the runs until then."""
    failed: list[str] = []
    samples: dict[str, dict[str, list]] = {row.key: {} for row in chosen}
    try:
        for number, row, target, counts in order:
            one = run_once(how, row, target, seconds, failed if counts else None)
            if one is not None and counts:
                samples[row.key].setdefault(target.name, []).append(one)
                found = f"{one.iops:>10.0f}/s {one.target_us_per_io:8.3f} us"
                print(f"{number}/{rounds} {row.title:<44} {target.name:<6} {found}", file=sys.stderr)
    except (KeyboardInterrupt, SystemExit):
        failed.append(f"{INTERRUPTED} in round {number} of {rounds}, {row.title}")
    medians = {key: {name: measure.medians(runs) for name, runs in by.items()} for key, by in samples.items()}
    return medians, failed


def measure_extras(how: Setup, all_of: list[Target], rounds: int, seconds: float) -> dict:
    extras: dict[str, dict] = {"idle_cpu_percent": {}, "idle_sessions": {}, "failed": {}}

    def try_to(what: str, name: str, work, into: dict) -> None:
        try:
            into[name] = work()
        except Unavailable as why:
            print(f"{name}, {what}: {why}", file=sys.stderr)
            extras["failed"][f"{name}, {what}"] = str(why)

    for target in all_of:
        if isinstance(target, Floor):
            continue
        with running(target):
            extras["idle_cpu_percent"][target.name] = measure.idle_cpu(target, IDLE_SECONDS)
            crowd = lambda: measure.idle_sessions(how, target, IDLE_SESSIONS, rounds, seconds)  # noqa: B023, E731
            try_to(f"{IDLE_SESSIONS} idle sessions", target.name, crowd, extras["idle_sessions"])
    if any(target.name == "lunar" for target in all_of):
        try_to(f"{UNITS} units", "units", lambda: measure.memory_of_units(how, UNITS), extras)
    return extras


def main() -> int:
    options = arguments()
    # Stop targets and unmount file systems on SIGTERM too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    protocol = f"{options.protocol}-model" if options.model else options.protocol
    is_ethernet = options.protocol == "ethernet"
    if is_ethernet:
        protocol += f"-{options.mtu}{'-no-offloads' if options.no_offloads else ''}"
    name = options.name or ("offload" if options.offload else protocol)
    results = ROOT / "check" / "bench" / "results"
    if options.offload:
        sizes = dict(part.split("=") for part in options.offload_sizes.split(","))
        sizes = {kind: int(float(size) * offload.GIB) for kind, size in sizes.items()}
        return offload.run(
            lambda folder: setup(folder, options.driver), sizes, options.rounds, options.folder, results, name
        )
    known, loads = PROTOCOLS[options.protocol]
    offered = rows.with_model(options.protocol, loads()) if options.model else loads()
    chosen = [row for row in offered if fnmatch.fnmatch(row.key, options.rows)]
    if options.list:
        print("\n".join(f"{row.key:<40} {row.title}" for row in offered))
        return 0
    if not chosen:
        print(f"no key of a row matches {options.rows}: see --list", file=sys.stderr)
        return 2
    kinds = options.targets.split(",") if options.targets else list(known)
    if options.model and not options.targets:
        kinds = [kind for kind in known if kind in MODEL_TARGETS]
    if unknown := set(kinds) - set(known):
        print(f"unknown targets: {', '.join(sorted(unknown))}; choose from {', '.join(known)}", file=sys.stderr)
        return 2
    network.enter_own(options.congestion)
    with contextlib.ExitStack() as stack:
        # SPDK creates the doorbell files of vfio-user in the folder of the sockets; a file to map must be in memory.
        where = options.folder or ("/dev/shm" if options.protocol == "vfio-user" else None)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lunar-bench-", dir=where))
        how = setup(Path(folder), options.driver)
        if is_ethernet:
            try:
                far = stack.enter_context(ethernet.link(options.mtu, not options.no_offloads))
            except Unavailable as why:
                print(why, file=sys.stderr)
                return 1
            how.initiator = far + how.initiator
        all_of, missing = started([known[kind] for kind in kinds], how, any(row.store == "ram" for row in chosen), stack)
        if not all_of:
            print(f"no target is available: {'; '.join(missing.values())}", file=sys.stderr)
            return 1
        machine = report.machine(how.folder)
        is_wanted = wanted_by_model if options.model else lambda *_: True
        order = schedule(options.rounds, chosen, all_of, is_wanted)
        table, failed = measure_rows(how, order, chosen, options.rounds, options.time)
        chosen = [row for row in chosen if table[row.key]]
        extras: dict = {}
        if options.model or options.protocol in ROWS_ONLY or any(why.startswith(INTERRUPTED) for why in failed):
            pass
        elif not options.no_extras and options.protocol in EXTRAS:
            extras = EXTRAS[options.protocol](how, all_of, running)
        elif not options.no_extras:
            extras = measure_extras(how, all_of, options.rounds, options.time)
        machine["load_after"] = report.load()
        if is_ethernet:
            machine["link"] = f"MTU {options.mtu}, offloads {'off' if options.no_offloads else 'on'}"
        notes = {target.name: target.note for target in all_of if target.note}
        if "LUNAR_BENCH_LUNAR" in os.environ:
            notes["lunar"] = "not the build of `make release`: set by LUNAR_BENCH_LUNAR"
        if "LUNAR_BENCH_INITIATOR" in os.environ:
            notes["initiator"] = "not `lunar bench` of this build, for all targets: set by LUNAR_BENCH_INITIATOR"
    found = {
        "protocol": options.protocol,
        "machine": machine,
        "rounds": options.rounds,
        "seconds": options.time,
        "targets": [target.name for target in all_of],
        "missing": missing,
        "failed": failed,
        "notes": notes,
        "rows": [{"key": row.key, "title": row.title, "group": row.group, "targets": table[row.key]} for row in chosen],
        "extras": extras,
    }
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    plots = report.plots(found, chosen, results, name)
    (results / f"{name}.md").write_text(report.markdown(found, plots))
    print(results / f"{name}.md")
    if failed:
        print(f"{len(failed)} runs failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
