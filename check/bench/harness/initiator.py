"""Just enough of an iSCSI initiator to send single commands and to count the bytes on the wire."""

from __future__ import annotations

import socket
import struct
import threading

# A parameter list or a block is sent as immediate data: every target accepts this length (RFC 7143 13.12).
IMMEDIATE_MAX = 8192
TIMEOUT_SECONDS = 120
KEYS = {
    "SessionType": "Normal",
    "HeaderDigest": "None",
    "DataDigest": "None",
    "InitialR2T": "No",
    "ImmediateData": "Yes",
    "MaxRecvDataSegmentLength": "262144",
    "FirstBurstLength": "65536",
    "MaxBurstLength": "262144",
}
NOP_OUT, COMMAND, LOGIN = 0x00, 0x01, 0x03
NOP_IN, RESPONSE, LOGIN_RESPONSE, DATA_IN = 0x20, 0x21, 0x23, 0x25
IMMEDIATE, FINAL, READ, WRITE, SIMPLE = 0x40, 0x80, 0x40, 0x20, 0x01
LOGIN_TO_FULL = 0x87
STATUS_IN_DATA = 0x01
NO_TAG = 0xFFFFFFFF


class Refused(Exception):
    """A command or login failed."""


class Session:
    """A session with one command at a time."""

    numbers = iter(range(1, 1 << 16))
    lock = threading.Lock()

    def __init__(self, port: int, target: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.wire_bytes = 0
        self.tag = self.command_number = 1
        self.expected = 0
        keys = {"InitiatorName": "iqn.2026-01.io.lunar:bench", "TargetName": target, **KEYS}
        with Session.lock:
            number = next(Session.numbers)
        head = struct.pack(">BB6xB3xHHIHxxII16x", LOGIN | IMMEDIATE, LOGIN_TO_FULL, 0x80, number, 0, 1, 0, 1, 0)
        self.send(head, b"".join(f"{key}={value}\0".encode() for key, value in keys.items()))
        head, _ = self.receive()
        if head[0] & 0x3F != LOGIN_RESPONSE or head[36]:
            raise Refused(f"login: {head.hex()}")

    def close(self) -> None:
        self.socket.close()

    def send(self, head: bytes, data: bytes) -> None:
        head = bytearray(head.ljust(48, b"\0"))
        head[5:8] = len(data).to_bytes(3)
        whole = bytes(head) + data + bytes(-len(data) % 4)
        self.socket.sendall(whole)
        self.wire_bytes += len(whole)

    def exactly(self, count: int) -> bytes:
        got = bytearray(count)
        view = memoryview(got)
        while view:
            read = self.socket.recv_into(view)
            if not read:
                raise Refused("the target closed the connection")
            view = view[read:]
        self.wire_bytes += count
        return bytes(got)

    def receive(self) -> tuple[bytes, bytes]:
        head = self.exactly(48)
        length = int.from_bytes(head[5:8])
        data = self.exactly(length + -length % 4)[:length]
        self.expected = int.from_bytes(head[24:28]) + 1
        return head, data

    def run(self, lun: int, cdb: bytes, out: bytes = b"", room: int = 0) -> bytes:
        """Executes a command; returns its Data-In."""
        assert len(out) <= IMMEDIATE_MAX and not (out and room)
        self.tag += 1
        flags = FINAL | SIMPLE | (WRITE if out else READ if room else 0)
        head = struct.pack(">BBxxxxxx", COMMAND, flags) + struct.pack(">xB6x", lun)
        head += struct.pack(">IIII", self.tag, len(out) or room, self.command_number, self.expected)
        head += cdb.ljust(16, b"\0")
        self.command_number += 1
        self.send(head, out)
        got = b""
        while True:
            head, data = self.receive()
            code = head[0] & 0x3F
            if code == NOP_IN:
                self.answer(head)
            elif code == DATA_IN:
                got += data
                if head[1] & STATUS_IN_DATA:
                    return self.check_status(cdb, head[3], b"", got)
            elif code == RESPONSE:
                return self.check_status(cdb, head[3], data, got)
            else:
                raise Refused(f"unexpected PDU for {cdb.hex()}: {head.hex()}")

    def answer(self, head: bytes) -> None:
        if (ping := head[20:24]) != b"\xff" * 4:
            reply = struct.pack(">BBxxxxxx", NOP_OUT | IMMEDIATE, FINAL) + head[8:16]
            reply += struct.pack(">I4sII", NO_TAG, ping, self.command_number, self.expected)
            self.send(reply, b"")

    @staticmethod
    def check_status(cdb: bytes, status: int, sense: bytes, got: bytes) -> bytes:
        if status:
            raise Refused(f"{cdb.hex()}: status {status:#x}, sense {sense[2:].hex()}")
        return got

    def ready(self, lun: int) -> None:
        """Clears the unit attentions of a new session."""
        for _ in range(8):
            try:
                self.run(lun, b"\0" * 6)
                return
            except Refused as why:
                last = why
        raise last
