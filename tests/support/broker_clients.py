"""Clients across the desk of a broker: their heartbeats, and what the broker says to them unasked."""

from __future__ import annotations

from typing import Any

from tests.support.broker_desk import BrokerDesk

from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import VERSION, RequestCode
from holdfast.wire.frames.command import Command


def a_subscription(topic: str, text: str = "*", version: int = 1) -> dict[str, Any]:
    """Return what a member wants of one topic."""
    return {"topic": topic, "subString": text, "subVersion": version, "expressionType": "TAG"}


def a_heartbeat(
    client_id: str,
    *,
    consumes: str | None = None,
    topics: tuple[dict[str, Any], ...] = (),
    produces: str | None = None,
    model: str = "CLUSTERING",
    begins: str = "CONSUME_FROM_LAST_OFFSET",
    version: int = VERSION,
    language: str = "JAVA",
) -> Command:
    """Return the heartbeat of a client that is in at most one group of each kind."""
    body: dict[str, Any] = {"clientID": client_id, "producerDataSet": [], "consumerDataSet": []}
    if produces is not None:
        body["producerDataSet"] = [{"groupName": produces}, {"groupName": "CLIENT_INNER_PRODUCER"}]
    if consumes is not None:
        body["consumerDataSet"] = [
            {
                "groupName": consumes,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": model,
                "consumeFromWhere": begins,
                "subscriptionDataSet": list(topics),
                "unitMode": False,
            }
        ]
    return Command(
        code=RequestCode.HEART_BEAT, opaque=99, language=language, version=version, body=java_json.encode(body)
    )


def join(desk: BrokerDesk, channel: int, heartbeat: Command) -> None:
    """Connect a client, let it beat, and forget what it was told."""
    desk.connect(channel)
    (answer,) = [answer for answer in desk.ask(heartbeat, channel=channel) if answer.is_response]
    assert answer.code == 0
    for answers in desk.answers.values():
        answers.clear()


def told(desk: BrokerDesk, channel: int) -> list[Command]:
    """Return the requests that the broker put to a client since this was last asked."""
    requests = [command for command in desk.answers[channel] if not command.is_response]
    desk.answers[channel] = [command for command in desk.answers[channel] if command.is_response]
    return requests


def a_request(code: int, body: bytes = b"", version: int = VERSION, **fields: object) -> Command:
    """Return a request with text fields."""
    return Command(
        code=code, opaque=7, version=version, fields={name: str(value) for name, value in fields.items()}, body=body
    )
