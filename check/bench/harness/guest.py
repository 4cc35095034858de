"""Just enough of a virtual machine to initialize a vfio-user controller and leave it idle."""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
import time

TIMEOUT_SECONDS = 10.0
VERSION, DMA_MAP, REGION_READ, REGION_WRITE = 1, 2, 9, 10
REPLY, ERROR = 0x01, 0x20
CC, CSTS, AQA, ASQ, DOORBELLS = 0x14, 0x1C, 0x24, 0x28, 0x1000
ENABLE, READY = 0x46_0001, 0x01
CREATE_SQ, CREATE_CQ, DOORBELL_BUFFERS = 0x01, 0x05, 0x7C
PAGE = 4096
ADMIN_ENTRIES, ENTRIES = 32, 64
# Offsets in the guest's memory, after the admin queues: shadow doorbells, event indexes, two pages for each queue pair.
SHADOW, EVENTS, QUEUES = 2 * PAGE, 3 * PAGE, 4 * PAGE


class Refused(Exception):
    """A message or a command failed or was not answered."""


class Guest:
    """A controller with `queues` I/O queues and shadow doorbells, as Linux uses them."""

    def __init__(self, path: str, queues: int) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(TIMEOUT_SECONDS)
        self.socket.connect(path)
        size = QUEUES + queues * 2 * PAGE
        file = os.memfd_create("guest")
        os.ftruncate(file, size)
        self.memory = mmap.mmap(file, size)
        self.number = 0
        # The tail of the admin submission queue, and its wraps.
        self.tail, self.turn = 0, 0
        capabilities = json.dumps({"capabilities": {"max_msg_fds": 1}}).encode() + b"\0"
        self.call(VERSION, struct.pack("<HH", 0, 1) + capabilities)
        self.call(DMA_MAP, struct.pack("<IIQQQ", 32, 3, 0, 0, size), [file])
        os.close(file)
        last = ADMIN_ENTRIES - 1
        self.set(AQA, struct.pack("<I", last | last << 16))
        self.set(ASQ, struct.pack("<QQ", 0, PAGE)[:8])
        self.set(ASQ + 8, struct.pack("<Q", PAGE))
        self.set(CC, struct.pack("<I", ENABLE))
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not struct.unpack("<I", self.get(CSTS))[0] & READY:
            if time.monotonic() > deadline:
                raise Refused("the controller is not ready")
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

    def admin(self, opcode: int, first: int, second: int, word10: int, word11: int) -> None:
        """Executes an admin command; rings the doorbell with a message."""
        entry = struct.pack("<BBHIQQQQIIIIII", opcode, 0, self.tail, 0, 0, 0, first, second, word10, word11, 0, 0, 0, 0)
        self.memory[self.tail * 64 : self.tail * 64 + 64] = entry
        at = PAGE + self.tail * 16 + 14
        phase = 1 - self.turn % 2
        self.tail = (self.tail + 1) % ADMIN_ENTRIES
        self.turn += self.tail == 0
        self.set(DOORBELLS, struct.pack("<I", self.tail))
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (status := struct.unpack_from("<H", self.memory, at)[0]) & 1 != phase:
            if time.monotonic() > deadline:
                raise Refused(f"admin command {opcode:#x} timed out")
        if status >> 1:
            raise Refused(f"admin command {opcode:#x} failed with status {status >> 1:#x}")
        self.set(DOORBELLS + 4, struct.pack("<I", self.tail))
