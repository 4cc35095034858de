"""Tables and plots of the results."""

from __future__ import annotations

import os
import platform
import sys
import textwrap
import time
from pathlib import Path

from .rows import Row, curve

MEASURE_LARGE = 128 << 10
# The width of text, in columns.
WIDTH = 120
# Rows are marked if the fastest and the slowest run differ by more than this fraction of the median,
SPREAD_MARK = 0.25
# or if other processes used more than this fraction of the host's CPU time.
FOREIGN_MARK = 0.1
COLORS = {
    "lunar": "#2b5fd9",
    "mapped": "#8a5fd9",
    "spdk": "#d9822b",
    "tgt": "#7a8190",
    "least": "#58a55c",
    "floor": "#222222",
    "iscsi": "#2b5fd9",
    "nvme-tcp": "#8a5fd9",
    "nvme-rdma": "#1f9aa8",
    "fcoe": "#58a55c",
    "aoe": "#c2417a",
    "st": "#d9822b",
    "vblade": "#7a8190",
    "qsd": "#7a8190",
    "handler": "#2b5fd9",
    "store": "#7a8190",
    "tape": "#2b5fd9",
    "file": "#7a8190",
}


def load() -> str:
    return " ".join(Path("/proc/loadavg").read_text().split()[:3])


def file_system(folder: Path) -> str:
    """The kind of file system that holds `folder`."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    holding = [(len(at), kind) for at, kind in mounts if folder.resolve().is_relative_to(at)]
    return max(holding)[1] if holding else "unknown"


def machine(folder: Path) -> dict:
    """The host of the measurement; `folder` has the file store."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "processor": model,
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "congestion": Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
        "file_system": file_system(folder),
        "date": time.strftime("%Y-%m-%d"),
        "load_before": load(),
    }


def rate(value: float, size: int) -> str:
    """Thousands of commands per second, or MB/s for long commands."""
    if size >= MEASURE_LARGE:
        return f"{value * size / 1e6:,.0f} MB/s"
    return f"{value / 1e3:,.1f} K"


def size_of(row: dict) -> int:
    return int(row["key"].split("-")[1])


def compared(found: dict) -> tuple[str, list[str]]:
    """The column that is compared with the others, and the others."""
    names = found["targets"]
    one = "lunar" if "lunar" in names else names[0]
    return one, [name for name in names if name != one]


def ratio(row: dict, one: str, other: str, value: str) -> str:
    ours, theirs = row["targets"].get(one), row["targets"].get(other)
    if not ours or not theirs or not theirs[value]:
        return ""
    return f"{ours[value] / theirs[value]:.2f}"


def table(head: list[str], body: list[list[str]]) -> list[str]:
    align = ["---"] + ["---:"] * (len(head) - 1)
    return ["| " + " | ".join(cells) + " |" for cells in [head, align, *body]]


def rates(found: dict) -> list[str]:
    names = found["targets"]
    one, others = compared(found)
    body = []
    for row in found["rows"]:
        cells = [row["title"]]
        for name in names:
            run = row["targets"].get(name)
            mark = " ~" if run and (run["spread"] > SPREAD_MARK or run["foreign"] > FOREIGN_MARK) else ""
            cells.append(rate(run["iops"], size_of(row)) + mark if run else "")
        body.append(cells + [ratio(row, one, name, "iops") for name in others])
    return table(["load", *names, *(f"{one} / {name}" for name in others)], body)


def costs(found: dict) -> list[str]:
    names = found["targets"]
    one, others = compared(found)
    body = []
    for row in found["rows"]:
        have = row["targets"]
        cells = [f"{have[name]['target_us_per_io']:.3f}" if name in have else "" for name in names]
        body.append([row["title"], *cells, *(ratio(row, one, name, "target_us_per_io") for name in others)])
    return table(["load", *names, *(f"{one} / {name}" for name in others)], body)


def latencies(found: dict) -> list[str]:
    names = found["targets"]
    body = []
    for row in found["rows"]:
        have = row["targets"]
        cells = [f"{have[name]['p50_us']:.1f} / {have[name]['p99_us']:.1f}" if name in have else "" for name in names]
        body.append([row["title"], *cells])
    return table(["load", *names], body)


def extras(found: dict) -> list[str]:
    more = found["extras"]
    if not more:
        return []
    failed = [f"\n{what}: failed ({why.strip().splitlines()[-1]})" for what, why in more["failed"].items()]
    if "idle_controllers" in more:
        return controllers(more) + failed
    if "idle_machines" in more:
        return machines(more) + failed
    lines = ["", "## Idle sessions and units", ""]
    body = []
    for name, percent in more["idle_cpu_percent"].items():
        cells = [name, f"{percent:.2f} %"]
        if crowd := more["idle_sessions"].get(name):
            cells += [f"{crowd['bytes_per_session'] / 1024:.1f} KiB", f"{crowd['logins_per_second']:,.0f}"]
            cells += [f"{crowd['ratio']:.2f}"]
        body.append(cells + [""] * (5 - len(cells)))
    head = ["target", "CPU without connections", "memory of an idle session", "logins per second"]
    lines += table([*head, "4 KiB random reads with 1,000 idle sessions / without"], body)
    if units := more.get("units"):
        per, one = units["bytes_per_unit"] / 1024, units["bytes_with_one"] / (1 << 20)
        with_more = f"each further one of {units['units']} units takes {per:.2f} KiB."
        lines += ["", f"Lunar with one unit takes {one:.1f} MiB of memory; {with_more}"]
    return lines + failed


def controllers(more: dict) -> list[str]:
    body = []
    for name, percent in more["idle_cpu_percent"].items():
        cells = [name, f"{percent:.2f} %"]
        if idle := more["idle_controllers"].get(name):
            cells += [f"{idle['cpu_percent']:.2f} %", f"{idle['bytes_per_controller'] / 1024:.1f} KiB"]
            cells += [f"{idle['bytes_per_queue'] / 1024:.1f} KiB"]
        body.append(cells + [""] * (5 - len(cells)))
    head = ["target", "CPU without connections", "CPU with 64 idle controllers"]
    head += ["memory of a controller with an admin and an I/O queue", "memory of each further I/O queue"]
    lines = ["", "## Idle controllers", "", *table(head, body)]
    for name, one in more.get("wakes", {}).items():
        lines += ["", textwrap.fill(WAKES.format(name=name.capitalize(), **one), WIDTH)]
    return lines


def machines(more: dict) -> list[str]:
    body, count = [], 0
    for name, percent in more["idle_cpu_percent"].items():
        idle = more["idle_machines"].get(name)
        count = idle["machines"] if idle else count
        cells = ["", "", ""]
        if idle:
            cells = [f"{idle['cpu_percent']:.2f} %", f"{idle['bytes_per_machine'] / 1024:.1f} KiB"]
            cells += [f"{idle['iscsi_ratio']:.2f}"]
        body.append([name, f"{percent:.2f} %", *cells])
    head = ["target", "CPU without connections", f"CPU with {count} idle machines", "memory of a machine with one queue"]
    head += [f"4 KiB random reads of an iSCSI session with {count} idle machines / without"]
    return ["", "## Idle machines", "", *table(head, body)]


TITLES = {
    "iscsi": "iSCSI over loopback",
    "nvme-tcp": "NVMe/TCP over loopback",
    "vfio-user": "Controllers of virtual machines (vfio-user), in shared memory",
    "vhost-user": "Virtio disks of virtual machines (vhost-user), in shared memory",
    "vhost-scsi": "SCSI host adapters of virtual machines (vhost-user), in shared memory",
    "handler": "A handler that stores nothing, and the null store, over iSCSI",
    "handler-vfio-user": "A handler that stores nothing, and the null store, over vfio-user",
    "tape": "A drive of the tape library, and the file store on the same file system, over iSCSI",
    "ethernet": "One Ethernet link (a veth pair): {link}",
}
WAKES = """{name}: a guest pauses and then sends {burst} commands one after the other, {times} times. The first command
after a pause completes in {p50_us:.0f} us (median; 99 % in {p99_us:.0f} us, all in {max_us:.0f} us). For all commands of
a burst together, the guest sends {rings:.1f} doorbell messages; Lunar finds the other commands by polling."""
ABOUT = """{date}, {processor}, {cpus} CPUs, Linux {kernel}, TCP with {congestion}. The target is on CPU 0, the initiator
(`lunar bench`) on CPU 1, the file store on {file_system}. Medians of {rounds} runs of {seconds} s each. The targets
run in turns; each round starts with another target, after a run that does not count.
Load of the host before and after: {load_before}; {load_after}. A tilde marks rows whose runs differ by more than a
quarter, or during which other processes used more than a tenth of the CPU time. Compare columns, not hosts."""
COSTS = "Lunar and SPDK poll under load: busy time by their own statistics. Other targets: CPU time by the kernel."


def markdown(found: dict, plots: list[str]) -> str:
    about = ABOUT.format(**found["machine"], rounds=found["rounds"], seconds=found["seconds"])
    lines = [f"# {TITLES[found['protocol']].format(**found['machine'])}", "", textwrap.fill(about, WIDTH), ""]
    lines += [f"* {name}: {note}" for name, note in found["notes"].items()]
    lines += [f"* {name} was skipped: {why.splitlines()[0]}" for name, why in found["missing"].items()]
    lines += [f"* A run failed and is not counted: {what}" for what in found["failed"]]
    lines += ["", "## Commands per second", "", *rates(found)]
    lines += ["", "## CPU time of the target, microseconds per command", "", COSTS, "", *costs(found)]
    lines += ["", "## Latency, microseconds: median / 99th percentile", "", *latencies(found), *extras(found)]
    for plot in plots:
        lines += ["", f"![{plot}]({plot})"]
    return "\n".join(lines) + "\n"


def pyplot():
    """The plotting library, or None if matplotlib is not installed."""
    try:
        import matplotlib

        matplotlib.use("svg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("no plots: matplotlib is not installed (Debian: apt install python3-matplotlib)", file=sys.stderr)
        return None
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "lunar", "font.size": 9})
    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
    return plt


def plots(found: dict, chosen: list[Row], folder: Path, name: str) -> list[str]:
    """Draws the plots; returns the names of their files, none without matplotlib."""
    plt = pyplot()
    if plt is None:
        return []
    small = [row for row in found["rows"] if row["group"] != "curve" and size_of(row) < MEASURE_LARGE]
    large = [row for row in found["rows"] if size_of(row) >= MEASURE_LARGE]
    made = []

    def save(figure, what: str) -> None:
        figure.savefig(folder / f"{name}-{what}.svg", bbox_inches="tight", metadata={"Date": None})
        plt.close(figure)
        made.append(f"{name}-{what}.svg")

    if small:
        save(bars(plt, found, small, lambda one, _: one["iops"] / 1e3, "thousand commands per second"), "rates")
        save(bars(plt, found, small, lambda one, _: one["target_us_per_io"], "target CPU, us per command"), "costs")
    if large:
        save(bars(plt, found, large, lambda one, size: one["iops"] * size / 1e6, "MB/s"), "large")
    if len(depths := curve(chosen)) > 1:
        save(lines(plt, found, depths), "depths")
    return made


def bars(plt, found: dict, rows: list[dict], value, label: str):
    names = [name for name in found["targets"] if any(name in row["targets"] for row in rows)]
    figure, axes = plt.subplots(figsize=(8, 0.45 + 0.16 * len(rows) * (len(names) + 1)))
    step = len(names) + 1
    for place, name in enumerate(names):
        at = [number * step + place for number, row in enumerate(rows) if name in row["targets"]]
        widths = [value(row["targets"][name], size_of(row)) for row in rows if name in row["targets"]]
        axes.barh(at, widths, height=0.9, color=COLORS[name], label=name)
    medians = [number * step + (len(names) - 1) / 2 for number in range(len(rows))]
    axes.set_yticks(medians, [row["title"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.grid(axis="x", alpha=0.3)
    legend(axes, len(names))
    return figure


def legend(axes, columns: int) -> None:
    """The legend, above the bars."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncol=columns, frameon=False)


def lines(plt, found: dict, depths: list[Row]):
    from matplotlib.ticker import LogLocator, NullLocator

    by_key = {row["key"]: row["targets"] for row in found["rows"]}
    figure, (rate_axes, cost_axes) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for name in found["targets"]:
        points = [(row.depth, by_key[row.key][name]) for row in depths if name in by_key[row.key]]
        if not points:
            continue
        depth = [at for at, _ in points]
        look = {"marker": "o", "ms": 3, "color": COLORS[name], "label": name}
        rate_axes.plot(depth, [one["iops"] / 1e3 for _, one in points], **look)
        cost_axes.plot(depth, [one["target_us_per_io"] for _, one in points], **look)
    for axes, label in ((rate_axes, "thousand 4 KiB reads per second"), (cost_axes, "target CPU, us per command")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("depth")
        axes.set_ylabel(label)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_xticks([row.depth for row in depths], [str(row.depth) for row in depths])
        axes.grid(alpha=0.3)
    rate_axes.legend(frameon=False)
    return figure
