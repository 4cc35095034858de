"""Fronts over one Ethernet link: a veth pair between two network namespaces.

Lunar serves each protocol with a process of its own. Debian's vblade is the peer for ATA over Ethernet.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator

from .network import INSIDE
from .rows import KIB, Row
from .targets import NULL_BYTES, Lunar, Setup, Target, Unavailable, answers, wait_for

# The interfaces and the addresses (RFC 5737) of the two ends.
TARGET, HOST = "target0", "host0"
TARGET_ADDRESS, HOST_ADDRESS = "192.0.2.1", "192.0.2.2"
SHELF = 1
ST_PORT = 18181
# The features of an interface that make one unit of many frames, or leave checksums out.
OFFLOADS = ("tx", "rx", "sg", "tso", "gso", "gro", "lro")


@contextlib.contextmanager
def link(mtu: int, offloads: bool) -> Iterator[list[str]]:
    """Makes the veth pair in the present namespace. Yields the command that runs a program at the far end."""
    if INSIDE not in os.environ:
        raise Unavailable("a veth pair needs root, unshare and ip")
    # The far end exists as long as this process.
    far = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    try:
        yield connect(far, mtu, offloads)
    finally:
        far.kill()
        far.wait()


def connect(far: subprocess.Popen, mtu: int, offloads: bool) -> list[str]:
    enter = ["nsenter", f"--net=/proc/{far.pid}/ns/net"]
    while os.readlink(f"/proc/{far.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        if far.poll() is not None:
            raise Unavailable("unshare --net failed")
        time.sleep(0.01)
    try:
        command("ip", "link", "add", TARGET, "type", "veth", "peer", "name", HOST)
        command("ip", "link", "set", HOST, "netns", str(far.pid))
        for prefix, name, address in (([], TARGET, TARGET_ADDRESS), (enter, HOST, HOST_ADDRESS)):
            command(*prefix, "ip", "link", "set", name, "mtu", str(mtu), "up")
            command(*prefix, "ip", "address", "add", f"{address}/24", "dev", name)
            if not offloads:
                off(prefix, name)
    except subprocess.CalledProcessError as why:
        raise Unavailable(f"{' '.join(why.cmd)}: {why.stderr.strip()}") from why
    return enter


def command(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def off(prefix: list[str], name: str) -> None:
    """Switches the offloads of an interface off. A feature that the interface does not have stays as it is."""
    if not shutil.which("ethtool"):
        raise Unavailable("ethtool is not installed (Debian: apt install ethtool)")
    for feature in OFFLOADS:
        subprocess.run([*prefix, "ethtool", "-K", name, feature, "off"], check=False, capture_output=True)
    shown = command(*prefix, "ethtool", "-k", name)
    for feature in ("tcp-segmentation-offload", "generic-segmentation-offload", "generic-receive-offload"):
        if f"{feature}: on" in shown:
            raise Unavailable(f"{name}: {feature} cannot be switched off")


def is_loaded(setup: Setup, url: str) -> bool:
    """Runs a short load: a link has no ports that can be asked."""
    load = [*setup.initiator, url, "--time", "0.05", "--warmup", "0", "--depth", "1"]
    return subprocess.run(load, capture_output=True, check=False).returncode == 0


class LunarEthernet(Lunar):
    """Lunar with one front on the link."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, [f"null:{NULL_BYTES}", str(setup.file_image(self.name))])

    def start(self) -> None:
        if not self.setup.lunar.exists():
            raise Unavailable(f"{self.setup.lunar} is not built")
        serve = [str(self.setup.lunar), "serve", *self.portal_arguments(), "--cores", "1"]
        self.spawn([*serve, "--driver", self.setup.driver, "--stats", str(self.stats), *self.volumes])
        wait_for(self.name, lambda: self.stats.exists() and answers(self.port), self.process, self.log)
        wait_for(self.name, self.is_ready, self.process, self.log)

    def is_ready(self) -> bool:
        return is_loaded(self.setup, self.unit(0))

    def listed(self, portal: str) -> str:
        """The name of the target, by discovery."""
        if not self.iqn:
            listing = [*self.setup.initiator, portal, "--list"]
            self.iqn = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split()[0]
        return self.iqn

    def unit(self, number: int) -> str:
        """The URL of a logical unit."""
        raise NotImplementedError

    def url(self, store: str) -> str | None:
        return self.unit(["null", "file"].index(store))


class Iscsi(LunarEthernet):
    name = "iscsi"

    def portal_arguments(self) -> list[str]:
        return ["--listen", f"127.0.0.1:{self.port}", "--listen", f"{TARGET_ADDRESS}:{self.port}"]

    def unit(self, number: int) -> str:
        at = f"iscsi://{TARGET_ADDRESS}:{self.port}"
        return f"{at}/{self.listed(at)}/{number}"


class Nvme(LunarEthernet):
    name = "nvme-tcp"

    def portal_arguments(self) -> list[str]:
        return ["--listen", f"127.0.0.1:{self.port}", "--nvme", f"{TARGET_ADDRESS}:{self.port}"]

    def unit(self, number: int) -> str:
        at = f"nvme-tcp://{TARGET_ADDRESS}:{self.port}"
        return f"{at}/{self.listed(at)}/{number + 1}"


class NvmeRdma(LunarEthernet):
    name = "nvme-rdma"

    def portal_arguments(self) -> list[str]:
        return ["--listen", f"127.0.0.1:{self.port}", "--nvme-rdma", TARGET_ADDRESS]

    def unit(self, number: int) -> str:
        at = f"nvme-rdma://{TARGET_ADDRESS}"
        return f"{at}/{self.listed(at)}/{number + 1}"


class Fcoe(LunarEthernet):
    name = "fcoe"

    def portal_arguments(self) -> list[str]:
        return ["--listen", f"127.0.0.1:{self.port}", "--fcoe", TARGET]

    def unit(self, number: int) -> str:
        return f"fcoe:{HOST}#{number}"


class St(LunarEthernet):
    name = "st"

    def portal_arguments(self) -> list[str]:
        return ["--listen", f"127.0.0.1:{self.port}", "--st", f"udp:{TARGET_ADDRESS}:{ST_PORT}"]

    def unit(self, number: int) -> str:
        return f"st:udp:{TARGET_ADDRESS}:{ST_PORT}#{number}"


class Aoe(LunarEthernet):
    name = "aoe"

    def portal_arguments(self) -> list[str]:
        return ["--listen", f"127.0.0.1:{self.port}", "--aoe", f"{TARGET}:{SHELF}.0"]

    def unit(self, number: int) -> str:
        return f"aoe:{HOST}:{SHELF}.{number}"


class Vblade(Target):
    """Debian's vblade with the file; it has no store without data."""

    name = "vblade"
    note = "Debian's ATA over Ethernet target with synchronous writes; it serves files and devices only"

    def start(self) -> None:
        if not shutil.which("vblade"):
            raise Unavailable("vblade is not installed (Debian: apt install vblade)")
        self.spawn(["vblade", "-s", str(SHELF + 1), "0", TARGET, str(self.setup.file_image(self.name))])
        wait_for(self.name, lambda: is_loaded(self.setup, self.url("file")), self.process, self.log)

    def url(self, store: str) -> str | None:
        return f"aoe:{HOST}:{SHELF + 1}.0" if store == "file" else None


KINDS: dict[str, type[Target]] = {kind.name: kind for kind in (Aoe, Vblade, Fcoe, Iscsi, Nvme, NvmeRdma, St)}


def rows() -> list[Row]:
    curve = [Row("curve", "randread", 4 * KIB, depth) for depth in (1, 8, 32, 128)]
    writes = [Row("page", "randwrite", 4 * KIB, depth) for depth in (1, 32, 128)]
    large = [Row("large", rw, 128 * KIB, 8) for rw in ("read", "write")]
    stores = [Row("stores", rw, 4 * KIB, depth, store="file") for depth in (1, 32) for rw in ("randread", "randwrite")]
    stores += [Row("stores", rw, 128 * KIB, 8, store="file") for rw in ("read", "write")]
    return curve + writes + large + stores
