"""A Java consumer that says who it is, and stays connected."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Iterator

_HEARTBEAT = 34


def heartbeat(group: str, topic: str, client_id: str = "127.0.0.1@1") -> bytes:
    """Return what a Java consumer says of itself every 30 s."""
    subscription = {
        "classFilterMode": False,
        "codeSet": [],
        "subString": "*",
        "subVersion": 1,
        "tagsSet": [],
        "topic": topic,
    }
    consumer = {
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": group,
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [subscription],
        "unitMode": False,
    }
    return json.dumps({"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}).encode()


@contextlib.contextmanager
def a_java_member(address: str, group: str, topic: str) -> Iterator[None]:
    """Be a member of *group* at a broker while the block lasts."""
    body = heartbeat(group, topic)
    head = json.dumps(
        {"code": _HEARTBEAT, "flag": 0, "language": "JAVA", "opaque": 1, "version": 513, "extFields": {}}
    ).encode()
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(struct.pack(">II", 4 + len(head) + len(body), len(head)) + head + body)
        with connection.makefile("rb") as stream:
            answer = b""
            while b'"flag":1' not in answer:  # It is asked to share queues out before it is answered.
                (size,) = struct.unpack(">I", stream.read(4))
                answer = stream.read(size).replace(b" ", b"")
            assert b'"code":0' in answer, answer
            yield
