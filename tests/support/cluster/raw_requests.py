"""Requests to real servers in raw frames, and waiting for what their answers say. Nothing of our own client is used."""

import base64
import hashlib
import hmac
import itertools
import json
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from tests.support.child import ChildFailed

TIMEOUT_S = 60.0
JAVA_5 = {"language": "JAVA", "version": 513}
JAVA_4 = {"language": "JAVA", "version": 407}
OUR_CLIENT = {"language": "PYTHON", "version": 479, "extFields": {"hf.mapping": "1"}}
KINDS = {"java 5": JAVA_5, "java 4": JAVA_4, "ours": OUR_CLIENT}
"""What clients of each kind write into the header of a request."""
_PAUSE_S = 0.02
_UPDATE_AND_CREATE_TOPIC = 17
_GET_ROUTE = 105
_GET_BROKER_CLUSTER_INFO = 106
_opaques = itertools.count(1)


class Answer(NamedTuple):
    """The response of a server."""

    code: int
    remark: str
    fields: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text without spaces."""
        return self.body.decode("utf-8", "replace").replace(" ", "")


class Signer(NamedTuple):
    """A user whose requests are signed."""

    user: str
    secret: str

    def sign(self, fields: Mapping[str, str], body: bytes) -> dict[str, str]:
        """Return *fields* with those of the signature."""
        signed = {**fields, "AccessKey": self.user}
        content = "".join(value for _, value in sorted(signed.items())).encode() + body
        digest = hmac.digest(self.secret.encode(), content, hashlib.sha1)
        return {**signed, "Signature": base64.b64encode(digest).decode()}


def raw_request(
    address: str,
    code: int,
    fields: Mapping[str, str],
    body: bytes = b"",
    *,
    signer: Signer | None = None,
    **header: Any,
) -> Answer:
    """Send one request to a server on a connection of its own; return the answer. *header* as one of `KINDS`."""
    all_fields = {**fields, **header.pop("extFields", {})}
    if signer is not None:
        all_fields = signer.sign(all_fields, body)
    header_fields = {**JAVA_5, "code": code, "flag": 0, "opaque": next(_opaques), **header}
    encoded_header = json.dumps({**header_fields, "extFields": all_fields}).encode()
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
        connection.sendall(
            struct.pack(">II", 4 + len(encoded_header) + len(body), len(encoded_header)) + encoded_header + body
        )
        with connection.makefile("rb") as stream:
            while True:
                size, header_size = struct.unpack(">II", stream.read(8))
                received = stream.read(size - 4)
                header_received = json.loads(received[: header_size & 0xFFFFFF])
                if header_received["flag"] & 1:  # Requests that a broker sends to its clients are ignored.
                    break
    return Answer(
        header_received["code"],
        header_received.get("remark") or "",
        header_received.get("extFields") or {},
        received[header_size & 0xFFFFFF :],
    )


def wait_until(
    condition: Callable[[], bool], failure: str | Callable[[], str] = "", *, timeout_s: float = TIMEOUT_S
) -> None:
    """Return once *condition* is true; poll, since no server reports it. *failure* explains a timeout."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            explanation = failure() if callable(failure) else failure
            raise ChildFailed(explanation or f"not true within {timeout_s:g} s")
        time.sleep(_PAUSE_S)


def wait_until_registered(
    name_server: str, brokers: Iterable[str], *, timeout_s: float = TIMEOUT_S, signer: Signer | None = None
) -> None:
    """Return once the name server lists all *brokers*, by name or by address."""
    _wait_for_brokers(name_server, set(brokers), present=True, timeout_s=timeout_s, signer=signer)


def wait_until_gone(
    name_server: str, brokers: Iterable[str], *, timeout_s: float = TIMEOUT_S, signer: Signer | None = None
) -> None:
    """Return once the name server lists none of *brokers*, by name or by address."""
    _wait_for_brokers(name_server, set(brokers), present=False, timeout_s=timeout_s, signer=signer)


def _wait_for_brokers(
    name_server: str, brokers: set[str], *, present: bool, timeout_s: float, signer: Signer | None
) -> None:
    def listed() -> str:
        return raw_request(name_server, _GET_BROKER_CLUSTER_INFO, {}, signer=signer, **JAVA_4).text

    def is_so() -> bool:
        text = listed()
        return all((f'"{broker}"' in text) is present for broker in brokers)

    wait_until(
        is_so,
        lambda: f"name server {name_server}: wanted {brokers} {present=}, it lists {listed()}",
        timeout_s=timeout_s,
    )


def java_topic_fields(topic: str, queues: int) -> dict[str, str]:
    """Return the header fields with which Java's tools create a topic."""
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }


def make_topic(
    name_server: str,
    brokers: Iterable[str],
    topic: str,
    *,
    queues: int,
    attributes: str | None = None,
    signer: Signer | None = None,
) -> None:
    """Make a topic on each of *brokers* (addresses); return once the name server reports it on all of them.

    *attributes* as Java's tools write them: with `+queue.type=BatchCQ` it keeps batches whole.
    """
    addresses = list(brokers)
    fields = java_topic_fields(topic, queues)
    if attributes is not None:
        fields["attributes"] = attributes
    for address in addresses:
        made = raw_request(address, _UPDATE_AND_CREATE_TOPIC, fields, signer=signer, **JAVA_4)
        if made.code != 0:
            raise ChildFailed(f"broker {address} does not make topic {topic}: {made.remark}")

    def find_route() -> Answer:
        return raw_request(name_server, _GET_ROUTE, {"topic": topic}, signer=signer, **JAVA_4)

    def is_complete() -> bool:
        route = find_route()
        return route.code == 0 and route.text.count('"readQueueNums"') == len(addresses)

    wait_until(is_complete, lambda: f"name server {name_server}, topic {topic}: {find_route()}")
