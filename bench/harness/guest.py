"""Just enough of a virtual machine to have a controller over vfio-user: it is idle, or times how soon it is heard."""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
import time

PATIENCE_SECONDS = 10.0
# A target that does not look by itself by then is one that wants to be rung.
WAKE_SECONDS = 0.1
VERSION, DMA_MAP, REGION_READ, REGION_WRITE = 1, 2, 9, 10
REPLY, ERROR = 0x01, 0x20
CC, CSTS, AQA, ASQ, DOORBELLS = 0x14, 0x1C, 0x24, 0x28, 0x1000
ENABLE, READY = 0x46_0001, 0x01
CREATE_SQ, CREATE_CQ, DOORBELL_BUFFERS, READ = 0x01, 0x05, 0x7C, 0x02
PAGE = 4096
ENTRIES = 64
# Where in its memory: the admin queues, both pages of doorbells, a page of data; then two pages for each queue.
SHADOW, EVENTS, DATA, QUEUES = 2 * PAGE, 3 * PAGE, 4 * PAGE, 5 * PAGE


class Refused(Exception):
    """A message or a command that did not end well, or not at all."""


class Guest:
    """One controller with so many I/O queues, whose doorbells are in memory, as Linux has them."""

    def __init__(self, path: str, queues: int) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_SECONDS)
        self.socket.connect(path)
        size = QUEUES + queues * 2 * PAGE
        file = os.memfd_create("guest")
        os.ftruncate(file, size)
        self.memory = mmap.mmap(file, size)
        self.number = 0
        self.turns = [[0, 0, 1] for _ in range(queues + 1)]
        told = json.dumps({"capabilities": {"max_msg_fds": 1}}).encode() + b"\0"
        self.call(VERSION, struct.pack("<HH", 0, 1) + told)
        self.call(DMA_MAP, struct.pack("<IIQQQ", 32, 3, 0, 0, size), [file])
        os.close(file)
        last = 31
        self.set(AQA, struct.pack("<I", last | last << 16))
        self.set(ASQ, struct.pack("<QQ", 0, PAGE)[:8])
        self.set(ASQ + 8, struct.pack("<Q", PAGE))
        self.set(CC, struct.pack("<I", ENABLE))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not struct.unpack("<I", self.get(CSTS))[0] & READY:
            if time.monotonic() > deadline:
                raise Refused("the controller does not become ready")
            time.sleep(0.001)
        for queue in range(1, queues + 1):
            at = QUEUES + (queue - 1) * 2 * PAGE
            self.admin(CREATE_CQ, at + PAGE, 0, queue | (ENTRIES - 1) << 16, 1)
            self.admin(CREATE_SQ, at, 0, queue | (ENTRIES - 1) << 16, 1 | queue << 16)
        self.admin(DOORBELL_BUFFERS, SHADOW, EVENTS, 0, 0)

    def close(self) -> None:
        self.socket.close()

    def exactly(self, count: int) -> bytes:
        got = b""
        while len(got) < count:
            part = self.socket.recv(count - len(got))
            if not part:
                raise Refused("the target closed the connection")
            got += part
        return got

    def call(self, code: int, payload: bytes, files: list[int] | None = None) -> bytes:
        self.number = (self.number + 1) & 0xFFFF
        message = struct.pack("<HHIII", self.number, code, 16 + len(payload), 0, 0) + payload
        socket.send_fds(self.socket, [message], files or [])
        _, _, size, flags, errno = struct.unpack("<HHIII", self.exactly(16))
        answer = self.exactly(size - 16)
        if flags & ERROR or not flags & REPLY:
            raise Refused(f"message {code}: errno {errno}")
        return answer

    def get(self, offset: int) -> bytes:
        return self.call(REGION_READ, struct.pack("<QII", offset, 0, 4))[16:]

    def set(self, offset: int, value: bytes) -> None:
        self.call(REGION_WRITE, struct.pack("<QII", offset, 0, len(value)) + value)

    def places(self, queue: int) -> tuple[int, int, int]:
        at = QUEUES + (queue - 1) * 2 * PAGE
        return (0, PAGE, 32) if queue == 0 else (at, at + PAGE, ENTRIES)

    def put(self, queue: int, opcode: int, first: int, second: int, word10: int, word11: int, nsid: int = 0) -> None:
        at, _, entries = self.places(queue)
        turn = self.turns[queue]
        head = struct.pack("<BBHIQQ", opcode, 0, turn[0], nsid, 0, 0)
        entry = head + struct.pack("<QQIIIIII", first, second, word10, word11, 0, 0, 0, 0)
        self.memory[at + turn[0] * 64 : at + turn[0] * 64 + 64] = entry
        turn[0] = (turn[0] + 1) % entries

    def ring(self, queue: int) -> None:
        """By a message, as a guest that does not know of doorbells in memory."""
        self.set(DOORBELLS + 8 * queue, struct.pack("<I", self.turns[queue][0]))

    def show(self, queue: int) -> bool:
        """By memory; tells whether the controller wants to be rung."""
        old = struct.unpack_from("<I", self.memory, SHADOW + 8 * queue)[0]
        new = self.turns[queue][0]
        struct.pack_into("<I", self.memory, SHADOW + 8 * queue, new)
        event = struct.unpack_from("<I", self.memory, EVENTS + 8 * queue)[0]
        return (new - event - 1) & 0xFFFF < (new - old) & 0xFFFF

    def ended(self, queue: int, seconds: float = PATIENCE_SECONDS) -> bool:
        """Takes the next completion, and tells the controller that it has; whether it came in time."""
        _, at, entries = self.places(queue)
        turn = self.turns[queue]
        deadline = time.monotonic() + seconds
        while True:
            status = struct.unpack_from("<H", self.memory, at + turn[1] * 16 + 14)[0]
            if status & 1 == turn[2]:
                break
            if time.monotonic() > deadline:
                return False
        if status >> 1:
            raise Refused(f"a command ended with {status >> 1:#x}")
        turn[1] = (turn[1] + 1) % entries
        turn[2] ^= turn[1] == 0
        if queue:
            struct.pack_into("<I", self.memory, SHADOW + 8 * queue + 4, turn[1])
        else:
            self.set(DOORBELLS + 4, struct.pack("<I", turn[1]))
        return True

    def admin(self, opcode: int, first: int, second: int, word10: int, word11: int) -> None:
        self.put(0, opcode, first, second, word10, word11)
        self.ring(0)
        if not self.ended(0):
            raise Refused(f"admin command {opcode:#x} does not end")

    def wake(self, nsid: int, rest: float) -> tuple[float, float | None]:
        """Rests, then has commands carried out, one after the other: seconds until the first has ended, and until one
        has that was only shown in memory, for the target looks there by itself; None if it does not."""
        time.sleep(rest)
        first = None
        begun = time.perf_counter()
        while time.perf_counter() - begun < WAKE_SECONDS:
            self.put(1, READ, DATA, 0, 0, 0, nsid)
            is_rung = self.show(1)
            if is_rung:
                self.ring(1)
            if not self.ended(1):
                raise Refused("a command does not end")
            now = time.perf_counter() - begun
            first = first or now
            if not is_rung:
                return first, now
        return first or WAKE_SECONDS, None
