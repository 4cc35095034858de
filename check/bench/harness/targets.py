"""The measured targets: starting, pinning, pausing, and their CPU time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from .rows import Row

TARGET_CPU = 0
INITIATOR_CPU = 1
# The timeout for the start of a target, in seconds.
START_TIMEOUT = 20.0
RAM_BYTES = 256 << 20
FILE_BYTES = 1 << 30
NULL_BYTES = 1 << 40
# The command window of targets where it is configured: that of the deepest row.
WINDOW = 128


class Unavailable(Exception):
    """A target cannot be measured on this host; the message is the reason."""


@dataclass
class Setup:
    """The settings that all targets share."""

    folder: Path
    lunar: Path
    floor: Path
    initiator: list[str]
    driver: str

    def file_image(self, name: str = "disk") -> Path:
        """A file in the folder, completely written and in the page cache. Two processes cannot serve one file."""
        path = self.folder / f"{name}.img"
        if not path.exists() or path.stat().st_size != FILE_BYTES:
            with path.open("wb") as out:
                for _ in range(FILE_BYTES >> 20):
                    out.write(os.urandom(1 << 20))
                out.flush()
                os.fsync(out.fileno())
        with path.open("rb") as image:
            while image.read(4 << 20):
                pass
        return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(what: str, ready, process: subprocess.Popen, log: Path) -> None:
    """Waits until `ready()`. Raises Unavailable with the log if the target ends before."""
    deadline = time.monotonic() + START_TIMEOUT
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            tail = log.read_text(errors="replace")[-2000:]
            raise Unavailable(f"{what} did not start:\n{tail}")
        time.sleep(0.05)


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False


class Target:
    """A target process; `name` is its column."""

    name = ""
    note = ""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.port = free_port()
        self.process: subprocess.Popen | None = None
        self.log = setup.folder / f"{self.name}.log"

    def start(self) -> None:
        raise NotImplementedError

    def url(self, store: str) -> str | None:
        """The URL of the unit with this store (null, ram, file); None if there is none."""
        raise NotImplementedError

    def prepare(self, row: Row) -> None:
        """Prepares the target for a row."""

    def arguments(self) -> list[str]:
        """Options that make the initiator report the CPU time of this target."""
        return ["--pid", str(self.pid)]

    def busy_seconds(self) -> float | None:
        """The busy time by the target's own statistics, in seconds; None if it has none."""
        return None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def spawn(self, command: list[str], pin: bool = True, env: dict[str, str] | None = None) -> None:
        pinned = ["taskset", "-c", str(TARGET_CPU)] if pin else []
        out = self.log.open("wb")
        self.process = subprocess.Popen(
            pinned + command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )

    def pause(self) -> None:
        """Pauses the process, because a polling target would disturb the others."""
        if self.process is not None:
            os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        if self.process is not None:
            os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            self.resume()
            self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def memory(self) -> int:
        """The proportional set size of the process (Pss of smaps_rollup), in bytes."""
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
        raise Unavailable("no Pss in smaps_rollup")

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Lunar(Target):
    name = "lunar"
    scheme = "iscsi"
    # The LUN or namespace ID of the first unit.
    first_unit = 0

    def __init__(self, setup: Setup, volumes: list[str] | None = None) -> None:
        super().__init__(setup)
        self.volumes = volumes
        self.stats = setup.folder / f"{self.name}.stats"
        self.iqn = ""

    def portal_arguments(self) -> list[str]:
        """The options for its portals."""
        return ["--listen", f"127.0.0.1:{self.port}"]

    def start(self) -> None:
        if not self.setup.lunar.exists():
            raise Unavailable(f"{self.setup.lunar} is not built")
        volumes = self.volumes or [f"null:{NULL_BYTES}", f"ram:{RAM_BYTES}", str(self.setup.file_image())]
        self.stats.unlink(missing_ok=True)
        command = [str(self.setup.lunar), "serve", *self.portal_arguments(), "--cores", "1"]
        command += ["--driver", self.setup.driver, "--stats", str(self.stats)]
        self.spawn(command + volumes)
        wait_for("lunar", lambda: self.stats.exists() and answers(self.port), self.process, self.log)
        listing = [*self.setup.initiator, f"{self.scheme}://127.0.0.1:{self.port}", "--list"]
        found = subprocess.run(listing, capture_output=True, text=True, check=True)
        self.iqn = found.stdout.split()[0]

    def url(self, store: str) -> str | None:
        unit = self.first_unit + ["null", "ram", "file"].index(store)
        return f"{self.scheme}://127.0.0.1:{self.port}/{self.iqn}/{unit}"

    def arguments(self) -> list[str]:
        return [*super().arguments(), "--stats", str(self.stats)]


class Tgt(Target):
    name = "tgt"

    def start(self) -> None:
        if not shutil.which("tgtd") and not Path("/usr/sbin/tgtd").exists():
            raise Unavailable("tgtd is not installed (Debian: apt install tgt)")
        self.env = {"TGT_IPC_SOCKET": str(self.setup.folder / "tgt.socket")}
        self.spawn(["/usr/sbin/tgtd", "-f", "--iscsi", f"portal=127.0.0.1:{self.port}"], env=self.env)
        ready = lambda: answers(self.port) and self.admin("--mode", "sys", "--op", "show")  # noqa: E731
        wait_for("tgtd", ready, self.process, self.log)
        ram = Path("/dev/shm") / f"lunar-bench-{os.getpid()}.img"
        with ram.open("wb") as out:
            for _ in range(RAM_BYTES >> 20):
                out.write(os.urandom(1 << 20))
        self.ram = ram
        stores = [("null", "null", "null"), ("ram", "rdwr", str(ram)), ("file", "rdwr", str(self.setup.file_image()))]
        for number, (store, kind, backing) in enumerate(stores, 1):
            tid = ["--tid", str(number)]
            unit = ["--lun", "1", "--bstype", kind, "--backing-store", backing, "--blocksize", "512"]
            self.must("--mode", "target", "--op", "new", *tid, "--targetname", f"iqn.2026-01.io.lunar.bench:{store}")
            self.must("--mode", "logicalunit", "--op", "new", *tid, *unit)
            self.must("--mode", "target", "--op", "bind", *tid, "--initiator-address", "ALL")

    def admin(self, *args: str) -> bool:
        command = ["/usr/sbin/tgtadm", "--lld", "iscsi", *args]
        return subprocess.run(command, env={**os.environ, **self.env}, capture_output=True, check=False).returncode == 0

    def must(self, *args: str) -> None:
        if not self.admin(*args):
            raise Unavailable(f"tgtadm {' '.join(args)} failed")

    def url(self, store: str) -> str | None:
        return f"iscsi://127.0.0.1:{self.port}/iqn.2026-01.io.lunar.bench:{store}/1"

    def stop(self) -> None:
        super().stop()
        if hasattr(self, "ram"):
            self.ram.unlink(missing_ok=True)


class Spdk(Target):
    """SPDK's iscsi_tgt from the build tree in LUNAR_BENCH_SPDK. It always polls, so its own busy time is measured
    instead of its CPU time."""

    name = "spdk"
    program = "iscsi_tgt"
    note = "its file store bypasses the page cache"

    def start(self) -> None:
        tree = os.environ.get("LUNAR_BENCH_SPDK")
        if not tree:
            raise Unavailable("LUNAR_BENCH_SPDK does not name an SPDK build tree")
        self.rpc_path = self.setup.folder / "spdk.rpc"
        self.rpc_path.unlink(missing_ok=True)
        command = [f"{tree}/build/bin/{self.program}", "-m", f"[{TARGET_CPU}]", "--no-huge", "-s", "2048", "--no-pci"]
        command += ["--disable-cpumask-locks", "-i", str(self.port), "-r", str(self.rpc_path), "--wait-for-rpc"]
        command += self.program_arguments()
        # SPDK pins its own threads; other threads of the process must not run on the target's CPU.
        self.spawn(command, pin=False)
        wait_for(self.program, self.rpc_path.exists, self.process, self.log)
        self.rpc("sock_set_default_impl", impl_name=os.environ.get("LUNAR_BENCH_SPDK_SOCK", "posix"))
        self.configure()

    def program_arguments(self) -> list[str]:
        """More arguments of the program."""
        return []

    def configure(self) -> None:
        """Creates the units."""
        self.rpc("iscsi_set_options", max_sessions=1100, max_queue_depth=WINDOW, immediate_data=True)
        self.rpc("framework_start_init")
        self.rpc("framework_wait_init")
        self.rpc("bdev_null_create", name="null", num_blocks=NULL_BYTES // 512, block_size=512)
        self.rpc("bdev_malloc_create", name="ram", num_blocks=RAM_BYTES // 512, block_size=512)
        self.rpc("bdev_aio_create", name="file", filename=str(self.setup.file_image()), block_size=512)
        self.rpc("iscsi_create_initiator_group", tag=1, initiators=["ANY"], netmasks=["127.0.0.1/32"])
        portals = [{"host": "127.0.0.1", "port": str(self.port)}]
        self.rpc("iscsi_create_portal_group", tag=1, portals=portals)
        for store in ("null", "ram", "file"):
            self.rpc(
                "iscsi_create_target_node",
                name=f"iqn.2026-01.io.lunar.bench:{store}",
                alias_name=store,
                luns=[{"bdev_name": store, "lun_id": 0}],
                pg_ig_maps=[{"pg_tag": 1, "ig_tag": 1}],
                queue_depth=WINDOW,
                disable_chap=True,
            )
        # SPDK reduces a queue depth that it does not support without an error.
        if any(node["queue_depth"] < WINDOW for node in self.rpc("iscsi_get_target_nodes")):
            raise Unavailable(f"its queue depth is below {WINDOW}")

    def rpc(self, method: str, **params):
        """Calls a method of the JSON-RPC interface."""
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(START_TIMEOUT)
            link.connect(str(self.rpc_path))
            request = {"jsonrpc": "2.0", "id": 1, "method": method, **({"params": params} if params else {})}
            link.sendall(json.dumps(request).encode())
            text = b""
            while part := link.recv(65536):
                text += part
                try:
                    answer = json.loads(text)
                except ValueError:
                    continue
                if "error" in answer:
                    raise Unavailable(f"{method}: {answer['error']}")
                return answer["result"]
        raise Unavailable(f"{method}: the connection was closed")

    def url(self, store: str) -> str | None:
        return f"iscsi://127.0.0.1:{self.port}/iqn.2026-01.io.lunar.bench:{store}/0"

    def busy_seconds(self) -> float | None:
        stats = self.rpc("thread_get_stats")
        return sum(thread["busy"] for thread in stats["threads"]) / stats["tick_rate"]


class Floor(Target):
    """The bare request and reply loop; one process for each size of messages."""

    name = "floor"
    note = "bare requests and replies of the same sizes, no protocol"

    def start(self) -> None:
        if not self.setup.floor.exists():
            raise Unavailable(f"{self.setup.floor} is not built")

    def start_for(self, request: int, reply: int, spin: bool) -> None:
        self.port = free_port()
        command = [str(self.setup.floor), "serve", "--listen", f"127.0.0.1:{self.port}"]
        command += ["--request", str(request), "--reply", str(reply), *(["--spin"] if spin else [])]
        self.spawn(command)
        wait_for("floor", lambda: answers(self.port), self.process, self.log)

    def url(self, store: str) -> str | None:
        return None


class Least(Target):
    """The simplest target of a protocol: an empty disk without a device server."""

    name = "least"
    note = "just enough of the protocol for an empty disk"
    subcommand = "iscsi"
    spin = False

    def start(self) -> None:
        if not self.setup.floor.exists():
            raise Unavailable(f"{self.setup.floor} is not built")
        command = [str(self.setup.floor), self.subcommand, "--listen", f"127.0.0.1:{self.port}"]
        self.spawn([*command, *(["--spin"] if self.spin else [])])
        wait_for("floor", lambda: answers(self.port), self.process, self.log)

    def prepare(self, row: Row) -> None:
        """Polls if the floor does."""
        if self.spin != row.spin:
            self.stop()
            self.spin, self.port = row.spin, free_port()
            self.start()

    def url(self, store: str) -> str | None:
        return f"iscsi://127.0.0.1:{self.port}/iqn.2026-01.io.lunar:floor/0" if store == "null" else None


KINDS: dict[str, type[Target]] = {kind.name: kind for kind in (Lunar, Spdk, Tgt, Least, Floor)}
