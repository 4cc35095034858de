"""Scheduled Transfer beside TCP: the rows of the paper, the load of processors by soaking, tables and plots.

The paper is P. Pietikainen, "Scheduled Transfer Protocol on Linux" (2001). Its host had one processor for each end.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from . import ethernet, report

MIB = 1 << 20
# The length of a write, and of a Transfer.
WRITE = 512 << 10
SENDER_CPU, RECEIVER_CPU = 0, 1
PORT = 18182
# The shortest time between the start of a run and the time that counts.
WARM_UP = 0.5
# So many times the loops of an idle processor can only be counted if it was not idle before.
DISTURBED = 1.05
CLONE_NEWNET, CLONE_NEWNS = 0x4000_0000, 0x0002_0000


@dataclass(frozen=True)
class Row:
    """A row of the tables, with the numbers of the paper by MTU: MB/s, load of the receiver, load of the sender."""

    name: str
    title: str
    paper: dict[int, tuple[int, int, int]]
    # tcp, or for Scheduled Transfer: udp, frames, xdp.
    carrier: str = "tcp"
    is_sendfile: bool = False
    is_truncated: bool = False
    touches: bool = False


ROWS = [
    Row("tcp", "TCP write", {9000: (75, 55, 48), 1500: (52, 55, 50)}),
    Row("tcp-trunc", "TCP write, MSG_TRUNC", {9000: (99, 35, 55), 1500: (70, 52, 70)}, is_truncated=True),
    Row("sendfile", "sendfile", {9000: (74, 55, 12), 1500: (45, 50, 12)}, is_sendfile=True),
    Row("sendfile-trunc", "sendfile, MSG_TRUNC", {9000: (99, 31, 19), 1500: (70, 52, 39)}, is_sendfile=True, is_truncated=True),
    Row("st", "ST write, frames", {9000: (98, 8, 17), 1500: (53, 8, 17)}, carrier="frames"),
    Row("st-xdp", "ST write, frames through AF_XDP", {}, carrier="xdp"),
    Row("st-udp", "ST write, UDP", {}, carrier="udp"),
    Row("tcp-touch", "TCP write, all bytes read", {9000: (49, 62, 22), 1500: (14, 53, 11)}, touches=True),
    Row("st-touch", "ST write, frames, all bytes read", {9000: (53, 23, 9), 1500: (34, 16, 11)}, carrier="frames", touches=True),
]
NAMES = [row.name for row in ROWS]


def soak(cpu: int, counter: mmap.mmap) -> None:
    """Counts loops on a processor that has nothing else to do."""
    os.sched_setaffinity(0, {cpu})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    number = ctypes.c_uint64.from_buffer(counter)
    loops = 0
    while True:
        loops += 1
        if loops % 64 == 0:
            number.value = loops


class Soakers:
    """A process for each of the two processors that counts what is left of it."""

    def __init__(self) -> None:
        self.counters = {cpu: mmap.mmap(-1, 8) for cpu in (SENDER_CPU, RECEIVER_CPU)}
        self.processes = [multiprocessing.Process(target=soak, args=pair, daemon=True) for pair in self.counters.items()]
        for process in self.processes:
            process.start()
        time.sleep(WARM_UP)
        self.idle = self.rates(2.0)

    def read(self) -> dict[int, int]:
        return {cpu: int.from_bytes(counter[:8], "little") for cpu, counter in self.counters.items()}

    def rates(self, seconds: float) -> dict[int, float]:
        before, started = self.read(), time.monotonic()
        time.sleep(seconds)
        after, spent = self.read(), time.monotonic() - started
        return {cpu: (after[cpu] - before[cpu]) / spent for cpu in after}

    def loads(self, seconds: float) -> dict[int, float]:
        """The load of each processor in a time, in percent."""
        rates = self.rates(seconds)
        if any(rate > DISTURBED * self.idle[cpu] for cpu, rate in rates.items()):
            print("the processors were not idle when the loops were counted first: the loads are too low", file=sys.stderr)
        return {cpu: max(0.0, 100 * (1 - rate / self.idle[cpu])) for cpu, rate in rates.items()}

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def tcp_receive(row: Row, ready, result) -> None:
    os.sched_setaffinity(0, {RECEIVER_CPU})
    listener = socket.create_server((ethernet.TARGET_ADDRESS, PORT))
    ready.set()
    stream, _ = listener.accept()
    buffer, total = bytearray(WRITE), 0
    view = memoryview(buffer)
    flags = socket.MSG_TRUNC if row.is_truncated else 0
    while count := stream.recv_into(buffer, WRITE, flags):
        total += count
        if row.touches:
            # Reads each byte without the cost of an interpreter's loop.
            zlib.adler32(view[:count])
    result.value = total


def tcp_send(row: Row, far_net: int, seconds: float, sent) -> None:
    os.sched_setaffinity(0, {SENDER_CPU})
    if ctypes.CDLL(None, use_errno=True).setns(far_net, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    stream = socket.create_connection((ethernet.TARGET_ADDRESS, PORT))
    block = bytes(WRITE)
    file = os.memfd_create("block")
    os.write(file, block)
    end, total = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        if row.is_sendfile:
            total += os.sendfile(stream.fileno(), file, 0, WRITE)
        else:
            stream.sendall(block)
            total += WRITE
        sent.value = total
    stream.close()


def switches(process: int) -> int:
    """How often a process has slept: each wake follows a sleep."""
    total = 0
    for task in Path(f"/proc/{process}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                total += int(line.split()[1])
    return total


def packets() -> int:
    return int(Path(f"/sys/class/net/{ethernet.TARGET}/statistics/rx_packets").read_text())


def counted(soakers: Soakers, receiver: int, moved, seconds: float) -> dict:
    """Measures the middle of a run: the bytes that `moved` counts, the loads, the wakes of the receiver."""
    time.sleep(WARM_UP)
    before, wakes, count = moved(), switches(receiver), packets()
    started = time.monotonic()
    loads = soakers.loads(seconds)
    spent = time.monotonic() - started
    mib = (moved() - before) / MIB
    busy = sum(loads.values()) / 100
    return {
        "mib_per_second": mib / spent,
        "receiver_load": loads[RECEIVER_CPU],
        "sender_load": loads[SENDER_CPU],
        "mib_per_busy_second": mib / spent / busy if busy else 0.0,
        "wakes_per_mib": (switches(receiver) - wakes) / mib if mib else 0.0,
        "packets_per_second": (packets() - count) / spent,
    }


def run_tcp(row: Row, soakers: Soakers, far: list[str], seconds: float) -> dict:
    ready, sent, received = multiprocessing.Event(), multiprocessing.Value("Q", 0), multiprocessing.Value("Q", 0)
    far_net = os.open(far[1].removeprefix("--net="), os.O_RDONLY)
    receiver = multiprocessing.Process(target=tcp_receive, args=(row, ready, received))
    receiver.start()
    ready.wait()
    sender = multiprocessing.Process(target=tcp_send, args=(row, far_net, seconds + 2 * WARM_UP, sent))
    sender.start()
    try:
        result = counted(soakers, receiver.pid, lambda: sent.value, seconds)
        sender.join()
        receiver.join()
    finally:
        for process in (sender, receiver):
            process.kill()
        os.close(far_net)
    if sender.exitcode or receiver.exitcode or received.value != sent.value:
        raise RuntimeError(f"{row.name}: {received.value} of {sent.value} bytes have come")
    return result


def mac(name: str) -> str:
    return Path(f"/sys/class/net/{name}/address").read_text().strip()


def run_st(row: Row, options, soakers: Soakers, far: list[str], seconds: float) -> dict:
    if row.carrier == "udp":
        links = (f"udp:{ethernet.TARGET_ADDRESS}:{PORT}", f"udp:{ethernet.HOST_ADDRESS}:{PORT}")
        peer = f"{ethernet.TARGET_ADDRESS}:{PORT}"
    else:
        prefix = "xdp:" if row.carrier == "xdp" else ""
        links, peer = (prefix + ethernet.TARGET, prefix + ethernet.HOST), mac(ethernet.TARGET)
    program = str(options.program.resolve())
    touch = ["touch"] if row.touches else []
    sink = ["taskset", "-c", str(RECEIVER_CPU), program, "sink", links[0], str(WRITE), *touch]
    source = [*far, "taskset", "-c", str(SENDER_CPU), program, "source", links[1], peer, str(WRITE), str(seconds + 2 * WARM_UP)]
    receiver = subprocess.Popen(sink, stdout=subprocess.PIPE, text=True)
    time.sleep(WARM_UP)
    sender = subprocess.Popen(source, stdout=subprocess.PIPE, text=True)
    try:
        # Bytes on the link stand for those of the Transfers: the rest is headers.
        link = Path(f"/sys/class/net/{ethernet.TARGET}/statistics/rx_bytes")
        result = counted(soakers, receiver.pid, lambda: int(link.read_text()), seconds)
        said, heard = sender.communicate(timeout=30)[0], receiver.communicate(timeout=30)[0]
    finally:
        sender.kill()
        receiver.kill()
    if sender.returncode or receiver.returncode:
        raise RuntimeError(f"{row.name}: {said} {heard}")
    words = said.split()
    sent, spent = int(words[1]), float(words[4])
    if int(heard.split()[1]) != sent:
        raise RuntimeError(f"{row.name}: {said} {heard}")
    if not result["mib_per_second"]:
        raise RuntimeError(f"{row.name}: the interface has counted no bytes")
    share = sent / MIB / spent / result["mib_per_second"]
    result["wakes_per_mib"] /= share
    result["mib_per_busy_second"] *= share
    result["mib_per_second"] = sent / MIB / spent
    return result


def enter_own_mounts() -> None:
    """Gives this process mounts of its own: /sys has the interfaces of its network namespace then."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "sysfs", "none", "/sys"], check=True)


def steer(far: list[str]) -> None:
    """Packets are processed on the processor of the process that they are for. A program of XDP gets frames with their
    VLAN tags."""
    for prefix, name in (([], ethernet.TARGET), (far, ethernet.HOST)):
        ethernet.command(*prefix, "ethtool", "-K", name, "rxvlan", "off", "txvlan", "off")
    Path(f"/sys/class/net/{ethernet.TARGET}/queues/rx-0/rps_cpus").write_text(f"{1 << RECEIVER_CPU:x}")
    # The files of a namespace are in its own sysfs.
    path = f"/sys/class/net/{ethernet.HOST}/queues/rx-0/rps_cpus"
    script = f"mount -t sysfs none /sys && echo {1 << SENDER_CPU:x} > {path}"
    subprocess.run([*far, "unshare", "--mount", "sh", "-c", script], check=True)


def measure(options, chosen: list[Row], mtu: int, offloads: bool) -> dict:
    with ethernet.link(mtu, offloads) as far:
        steer(far)
        soakers = Soakers()
        try:
            rows = {row.name: [] for row in chosen}
            for _ in range(options.rounds):
                for row in chosen:
                    run = run_tcp(row, soakers, far, options.time) if row.carrier == "tcp" else run_st(row, options, soakers, far, options.time)
                    rows[row.name].append(run)
                    print(f"mtu {mtu}, offloads {offloads}, {row.title}: {run['mib_per_second']:.0f} MiB/s", flush=True)
        finally:
            soakers.stop()
    medians = {name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in rows.items()}
    return {"mtu": mtu, "offloads": offloads, "rows": medians, "runs": rows}


HEAD = ["row", "MiB/s", "receiver %", "sender %", "MiB per busy CPU second", "wakes per MiB", "packets/s", "paper: MiB/s, receiver %, sender %"]


def lines(part: dict) -> list[str]:
    titles = {row.name: row for row in ROWS}
    body = []
    for name, found in part["rows"].items():
        paper = titles[name].paper.get(part["mtu"])
        body.append(
            [
                titles[name].title,
                f"{found['mib_per_second']:,.0f}",
                f"{found['receiver_load']:.0f}",
                f"{found['sender_load']:.0f}",
                f"{found['mib_per_busy_second']:,.0f}",
                f"{found['wakes_per_mib']:.2f}",
                f"{found['packets_per_second']:,.0f}",
                ", ".join(map(str, paper)) if paper else "",
            ]
        )
    return report.table(HEAD, body)


def title(part: dict) -> str:
    return f"MTU {part['mtu']}, offloads {'of today' if part['offloads'] else 'off, as in 2001'}"


def plot(part: dict, folder: Path) -> list[str]:
    plt = report.pyplot()
    if plt is None:
        return []
    names, titles = list(part["rows"]), {row.name: row.title for row in ROWS}
    figure, axes = plt.subplots(1, 2, figsize=(9, 0.4 * len(names) + 1), sharey=True)
    for at, (keys, label) in enumerate(((["mib_per_second"], "MiB/s"), (["receiver_load", "sender_load"], "load, %"))):
        for number, key in enumerate(keys):
            places = [place + number * 0.4 for place in range(len(names))]
            axes[at].barh(places, [part["rows"][name][key] for name in names], 0.8 / len(keys), label=key.replace("_", " "))
        axes[at].set_xlabel(label)
    # Above the bars: there is no free place between them.
    axes[1].legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=2)
    axes[0].set_yticks(range(len(names)), [titles[name] for name in names])
    axes[0].invert_yaxis()
    name = f"st-{part['mtu']}-{'on' if part['offloads'] else 'off'}.svg"
    figure.savefig(folder / name, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    return [name]


def write(options, found: list[dict], folder: Path) -> None:
    machine = report.machine(folder)
    text = [
        "# Scheduled Transfer beside TCP",
        "",
        f"{options.rounds} runs of {options.time:g} s, medians. {machine['processor']}, {machine['cpus']} CPUs, Linux {machine['kernel']},",
        f"{machine['date']}, TCP with {options.congestion}; writes of {WRITE >> 10} KiB; 1 MiB is 2^20 bytes. The layout of Scheduled Transfer is private.",
        "The figures of the paper are from 2001: one processor of 600 MHz for each end, and an adapter whose firmware placed the data.",
        "Here the kernel and the program of the receiver do that, so only the number of wakes can be as low.",
        "A receiver that reads all bytes computes a sum: Adler-32 for TCP, 64-bit words for Scheduled Transfer.",
    ]
    for part in found:
        text += ["", f"## {title(part)}", "", *lines(part)]
        text += [line for name in plot(part, folder) for line in ("", f"![{name}]({name})")]
    (folder / "st.md").write_text("\n".join(text) + "\n")
    (folder / "st.json").write_text(json.dumps({"machine": machine, "parts": found}, indent=1) + "\n")
    print(folder / "st.md")
