"""Clients across the desk of a broker: their heartbeats, and what the broker says to them unasked."""

from __future__ import annotations

from typing import Any

from tests.support.cluster.broker_machine import BrokerHarness

from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import VERSION, RequestCode
from holdfast.wire.frames.command import Command


def a_subscription(topic: str, text: str = "*", version: int = 1) -> dict[str, Any]:
    """Return what a member wants of one topic."""
    return {"topic": topic, "subString": text, "subVersion": version, "expressionType": "TAG"}


def a_heartbeat(
    client_id: str,
    *,
    consumer_group: str | None = None,
    topics: tuple[dict[str, Any], ...] = (),
    producer_group: str | None = None,
    model: str = "CLUSTERING",
    consume_from: str = "CONSUME_FROM_LAST_OFFSET",
    version: int = VERSION,
    language: str = "JAVA",
) -> Command:
    """Return the heartbeat of a client that is in at most one group of each kind."""
    body: dict[str, Any] = {"clientID": client_id, "producerDataSet": [], "consumerDataSet": []}
    if producer_group is not None:
        body["producerDataSet"] = [{"groupName": producer_group}, {"groupName": "CLIENT_INNER_PRODUCER"}]
    if consumer_group is not None:
        body["consumerDataSet"] = [
            {
                "groupName": consumer_group,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": model,
                "consumeFromWhere": consume_from,
                "subscriptionDataSet": list(topics),
                "unitMode": False,
            }
        ]
    return Command(
        code=RequestCode.HEART_BEAT, opaque=99, language=language, version=version, body=java_json.encode(body)
    )


def connect_client(harness: BrokerHarness, channel: int, heartbeat: Command) -> None:
    """Connect a client, let it beat, and forget what it was told."""
    harness.connect(channel)
    (answer,) = [answer for answer in harness.call(heartbeat, channel=channel) if answer.is_response]
    assert answer.code == 0
    for answers in harness.answers.values():
        answers.clear()


def pop_requests(harness: BrokerHarness, channel: int) -> list[Command]:
    """Return the requests that the broker put to a client since this was last asked."""
    requests = [command for command in harness.answers[channel] if not command.is_response]
    harness.answers[channel] = [command for command in harness.answers[channel] if command.is_response]
    return requests


def a_request(code: int, body: bytes = b"", version: int = VERSION, **fields: object) -> Command:
    """Return a request with text fields."""
    return Command(
        code=code, opaque=7, version=version, fields={name: str(value) for name, value in fields.items()}, body=body
    )
