"""A network namespace for the benchmark, with the default congestion control of Linux.

BBR arms a timer for every few packets, also over loopback. In a virtual machine, each timer costs the sender more than
the packets and distorts the results.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

# Set in the environment of the process inside the namespace.
INSIDE = "LUNAR_BENCH_NETWORK"
CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def enter_own(congestion: str) -> None:
    """Restarts this program in a network namespace of its own, unless it is in it or is not root."""
    if INSIDE in os.environ:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        try:
            CONGESTION.write_text(congestion)
        except OSError as why:
            sys.exit(
                f"TCP with {congestion} is not possible in a network namespace: {why.strerror}. Allow it on the host "
                f"(sysctl -w net.ipv4.tcp_allowed_congestion_control='{congestion} reno'), or choose another one "
                f"(--congestion {CONGESTION.read_text().strip()})"
            )
        return
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("ip"):
        print(f"no network namespace (needs root, unshare, ip): TCP with {CONGESTION.read_text().strip()}", file=sys.stderr)
        return
    os.environ[INSIDE] = "own"
    os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
