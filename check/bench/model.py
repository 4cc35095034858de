"""The performance model of Lunar: fits its terms to the kept results, checks it, and answers questions."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from harness import fitting, model_pages  # noqa: E402
from harness.model import PROTOCOLS, Load, predict, scaled  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "check" / "bench" / "results"
TERMS = RESULTS / "model.json"
REPORT = RESULTS / "model.md"
SIZING = ROOT / "docs" / "sizing.md"
# Terms that a fit finds again may differ by this fraction: floating-point arithmetic differs between processors.
SAME = 1e-3
DEPTH_MAX = 1024


def size(text: str) -> int:
    """A number of bytes: 4096, 4k, 1M."""
    units = {"k": 1 << 10, "m": 1 << 20}
    unit = units.get(text[-1:].lower(), 1)
    return int(text[: -1 if unit > 1 else None]) * unit


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="check/bench/model", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("fit", help="fit the terms to the results; write results/model.* and the tables of docs/sizing.md")
    verbs.add_parser("check", help="`fresh`, and predict each row without itself; fails if a row is off")
    verbs.add_parser("fresh", help="check only that the terms and the pages are those of the kept results")
    ask = verbs.add_parser("predict", help="predict a load")
    ask.add_argument("--protocol", choices=PROTOCOLS, default="iscsi", help="[%(default)s]")
    ask.add_argument("--rw", choices=("read", "write"), default="read", help="[%(default)s]")
    ask.add_argument("--bs", type=size, default=4096, metavar="BYTES", help="bytes of a command [%(default)s]")
    ask.add_argument("--depth", type=int, default=32, help="commands outstanding in each session [%(default)s]")
    ask.add_argument("--sessions", type=int, default=1, help="sessions, or queues of a controller [%(default)s]")
    ask.add_argument("--store", choices=("null", "ram", "file"), default="null", help="file: page cache [%(default)s]")
    ask.add_argument("--polling", action="store_true", help="the initiator polls")
    ask.add_argument("--store-wait", type=float, default=0.0, metavar="US", help="latency of the device in the store")
    ask.add_argument("--store-work", type=float, default=0.0, metavar="US", help="work of the core for a command in it")
    ask.add_argument("--network", type=float, default=0.0, metavar="US", help="round trip beyond that of the loopback")
    ask.add_argument("--link", type=float, default=0.0, metavar="GBIT/S", help="rate of the link [no limit]")
    ask.add_argument("--cores", type=int, default=1, help="serving cores [%(default)s]")
    ask.add_argument("--hosts", type=int, default=1, help="machines that send; 0: they are no limit [%(default)s]")
    ask.add_argument("--spin", type=float, default=100.0, metavar="US", help="how long a core polls [%(default)s]")
    ask.add_argument("--speed", type=float, default=1.0, help="a core is this many times as fast as the measured one")
    ask.add_argument("--rate", type=float, metavar="IOPS", help="also tell the cores and the depth for this rate")
    ask.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.verb == "predict":
        for name in ("bs", "depth", "sessions", "cores", "speed"):
            if getattr(options, name) <= 0:
                parser.error(f"--{name} must be positive")
        for name in ("store_wait", "store_work", "network", "link", "hosts", "spin"):
            if getattr(options, name) < 0:
                parser.error(f"--{name.replace('_', '-')} must not be negative")
    return options


def load_of(options: argparse.Namespace) -> Load:
    return Load(
        protocol=options.protocol,
        writes=options.rw == "write",
        size=options.bs,
        depth=options.depth,
        sessions=options.sessions,
        store=options.store,
        polling=options.polling,
        store_wait=options.store_wait,
        store_work=options.store_work,
        network=options.network,
        link=options.link,
        cores=options.cores,
        hosts=options.hosts,
        spin=options.spin,
    )


def needed(terms: dict, load: Load, rate: float) -> dict:
    """The least number of cores, and then the least depth, with which a rate is reached."""
    cores = 1
    while cores < load.sessions and predict(terms, replace(load, cores=cores, depth=DEPTH_MAX)).rate * 1e6 < rate:
        cores += 1
    depth = 1
    while depth < DEPTH_MAX and predict(terms, replace(load, cores=cores, depth=depth)).rate * 1e6 < rate:
        depth *= 2
    reached = predict(terms, replace(load, cores=cores, depth=depth))
    return {"cores": cores, "depth": depth, "reached": reached.rate * 1e6 >= rate, "limit": reached.limit}


def tell(options: argparse.Namespace) -> int:
    if not TERMS.exists():
        print(f"{TERMS} is missing: run check/bench/model fit", file=sys.stderr)
        return 1
    terms, load = scaled(json.loads(TERMS.read_text())["terms"], options.speed), load_of(options)
    answer = predict(terms, load)
    rate = answer.rate * 1e6
    found = {
        "iops": rate,
        "bytes_per_second": rate * load.size,
        "mean_latency_us": load.outstanding / answer.rate,
        "core_us_per_command": answer.work,
        "busy_cores": answer.rate * answer.work,
        "limit": answer.limit,
    }
    if options.rate:
        found["needed"] = needed(terms, load, options.rate)
    if options.json:
        print(json.dumps(found, indent=1))
        return 0
    print("\n".join(model_pages.spoken(load, found)))
    return 0


def main() -> int:
    options = arguments()
    if options.verb == "predict":
        return tell(options)
    rows, files = fitting.results(RESULTS)
    terms = fitting.fit(rows, files)
    if options.verb == "fit":
        verdicts = fitting.held_out(rows, terms)
        TERMS.write_text(json.dumps(model_pages.kept(files, terms), indent=1) + "\n")
        REPORT.write_text(model_pages.report(files, terms, verdicts))
        SIZING.write_text(model_pages.with_tables(SIZING.read_text(), terms))
        print(REPORT)
        return 0
    stale = model_pages.stale(TERMS, SIZING, files, terms, SAME)
    for what in stale:
        print(f"{what}: run check/bench/model fit", file=sys.stderr)
    if options.verb == "fresh":
        return 1 if stale else 0
    verdicts = fitting.held_out(rows, terms)
    print("\n".join(model_pages.verdict_lines(verdicts)))
    return 1 if stale or any(verdict.fails for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
