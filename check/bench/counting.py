"""Measures the cost of all statistics: the release, and a build that counts and times nothing, in turns."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import measure, network, report, rows, vfio  # noqa: E402
from harness.cost import Cost, cost_of  # noqa: E402
from harness.targets import NULL_BYTES, Lunar, Setup, Target, Unavailable  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
# How the target of each protocol is made, its rows, and the usual one: 4 KiB random read of a volume without a store.
Make = Callable[[Setup], Target]
PROTOCOLS: dict[str, tuple[Make, Callable[[], list[rows.Row]], str]] = {
    "iscsi": (lambda how: Lunar(how, [f"null:{NULL_BYTES}"]), rows.rows, "randread-4096-d32-s1-null"),
    "vfio-user": (vfio.LunarVfio, vfio.rows, "randread-4096-d32-s1-null-spin"),
}
# The limit of the cost, in percent.
LIMIT = 2.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="check/bench/counting", description=__doc__)
    parser.add_argument("--protocol", choices=PROTOCOLS, default="iscsi", help="[%(default)s]")
    parser.add_argument("--pairs", type=int, default=40, help="pairs of runs [%(default)s]")
    parser.add_argument("--time", type=float, default=1.5, help="seconds of each run [%(default)s]")
    parser.add_argument("--rows", help="the key of another row (check/bench/run --list)")
    parser.add_argument("--driver", default="auto", help="Lunar's driver: auto, io_uring, epoll")
    parser.add_argument("--counted", type=Path, help="the program with statistics [the build of `make release`]")
    parser.add_argument("--uncounted", type=Path, help="the program without [the build of this command]")
    parser.add_argument("--results", type=Path, default=ROOT / "check" / "bench" / "results", help="[%(default)s]")
    parser.add_argument("--no-build", action="store_true", help="measure the present builds")
    return parser.parse_args()


def setups(options: argparse.Namespace, folder: Path) -> dict[str, Setup]:
    """The settings of both builds. The initiator is the same program for both."""
    built = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    counted = options.counted or built / "trained" / "release" / "lunar"
    uncounted = options.uncounted or built / "uncounted" / "trained" / "release" / "lunar"
    both = {}
    for name, program in (("counted", counted), ("uncounted", uncounted)):
        own = folder / name
        own.mkdir()
        both[name] = Setup(own, program, Path("/nonexistent"), [str(counted), "bench"], options.driver)
    return both


def run(how: Setup, target: Target, row: rows.Row, seconds: float) -> float:
    """The commands per second of one run."""
    target.resume()
    try:
        one = measure.sample(how, target, row, seconds)
    finally:
        target.pause()
    if one is None:
        raise Unavailable(f"{row.title} cannot be measured")
    return one.iops


def pairs(how: dict[str, Setup], make: Make, row: rows.Row, options: argparse.Namespace) -> list[tuple[float, float]]:
    """Commands per second with and without statistics, pair by pair. Each pair begins with the other build than the
    one before, so that a drift of the host affects both alike; the first run of each is not counted."""
    found = []
    with contextlib.ExitStack() as stack:
        targets = {name: make(setup) for name, setup in how.items()}
        for target in targets.values():
            stack.callback(target.stop)
            target.start()
            target.pause()
        for name, target in targets.items():
            run(how[name], target, row, options.time)
        for number in range(options.pairs):
            order = ["counted", "uncounted"] if number % 2 == 0 else ["uncounted", "counted"]
            rates = {name: run(how[name], targets[name], row, options.time) for name in order}
            found.append((rates["counted"], rates["uncounted"]))
            print(f"{number + 1}/{options.pairs} {rates['counted']:.0f}/s {rates['uncounted']:.0f}/s", file=sys.stderr)
    return found


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    make, loads, usual = PROTOCOLS[options.protocol]
    wanted = options.rows or usual
    row = next((row for row in loads() if row.key == wanted and row.store == "null"), None)
    if row is None:
        print(f"there is no row {wanted} without a store: see check/bench/run --list", file=sys.stderr)
        return 2
    network.enter_own("cubic")
    where = "/dev/shm" if options.protocol == "vfio-user" else None
    with tempfile.TemporaryDirectory(prefix="lunar-bench-", dir=where) as folder:
        how = setups(options, Path(folder))
        machine = report.machine(Path(folder))
        try:
            measured = pairs(how, make, row, options)
        except Unavailable as why:
            print(why, file=sys.stderr)
            return 1
    cost: Cost = cost_of(measured)
    name = f"statistics-{options.protocol}"
    result = {"protocol": options.protocol, "row": row.title, "machine": machine, "pairs": measured}
    result["cost"] = asdict(cost)
    (options.results / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    verdict = "within" if cost.high < LIMIT else "not certainly within"
    print(f"{options.protocol}, {row.title}: all statistics cost {cost.words()}: {verdict} {LIMIT:g} %")
    return 0 if cost.high < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
