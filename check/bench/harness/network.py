"""A network of the benchmark's own, with TCP as Linux has it unless somebody says otherwise.

A machine whose TCP is BBR arms a timer for every few packets, also over loopback, where there is nothing to pace; in a
virtual machine each costs the sender more than the packets, and hides what is measured.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

# Says that this process is in it.
INSIDE = "LUNAR_BENCH_NETWORK"
CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def enter_own(congestion: str) -> None:
    """Begins this program anew in a network of its own, unless it is in it, or is not root."""
    if INSIDE in os.environ:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        CONGESTION.write_text(congestion)
        return
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("ip"):
        print(f"no network of its own (root, unshare, ip): TCP with {CONGESTION.read_text().strip()}", file=sys.stderr)
        return
    os.environ[INSIDE] = "own"
    os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
