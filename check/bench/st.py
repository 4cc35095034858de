"""Scheduled Transfer beside TCP, with the rows and the method of Pietikainen's paper: `check/bench/st --help`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from harness import network, transfer  # noqa: E402

RESULTS = Path(__file__).parent / "results"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each row, of which the median counts [%(default)s]")
    parser.add_argument("--time", type=float, default=60, help="seconds of a run [%(default)s]")
    parser.add_argument("--mtu", type=int, nargs="*", default=[9000, 1500], help="MTUs of the link [9000 1500]")
    parser.add_argument("--offloads", choices=["both", "off", "on"], default="both", help="segmentation by the kernel [%(default)s]")
    parser.add_argument("--rows", nargs="*", help=f"some rows: {', '.join(transfer.NAMES)}")
    parser.add_argument("--congestion", default="cubic", help="congestion control of TCP [%(default)s]")
    parser.add_argument("--program", type=Path, default=Path("target/release/lunar-st"), help="[%(default)s]")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where tables and plots are written")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if not options.program.exists():
        sys.exit(f"{options.program} is not built: cargo build --release -p lunar-st")
    network.enter_own(options.congestion)
    if network.INSIDE not in os.environ:
        sys.exit("the namespaces need root, unshare and ip")
    transfer.enter_own_mounts()
    chosen = [row for row in transfer.ROWS if not options.rows or row.name in options.rows]
    profiles = {"both": [False, True], "off": [False], "on": [True]}[options.offloads]
    found = [
        transfer.measure(options, chosen, mtu, offloads)
        for mtu in options.mtu
        for offloads in profiles
    ]
    options.results.mkdir(parents=True, exist_ok=True)
    transfer.write(options, found, options.results)


main()
