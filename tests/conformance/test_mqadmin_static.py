"""mqadmin's own words, recorded: it creates a static topic, grows it and moves it, and our brokers do what it wants.

The recordings are of Java brokers. Ours answer every question of the tool; where the tool plans a hole we leave none.
"""

from __future__ import annotations

import msgspec
import pytest
from tests.support import recordings
from tests.support.cluster.broker_machines import StaticBroker, StaticBrokers

from holdfast.wire.cluster.mapping import MappedTopic, MappingDetail, decode
from holdfast.wire.frames import java_json
from holdfast.wire.frames.command import Command

TOPIC = "TopicStatic"
PORTS = {40911: "brokerA", 42911: "brokerB"}


class ToolDesks(StaticBrokers):
    """The two brokers that the tool spoke to."""

    def __init__(self) -> None:
        super().__init__("brokerA", "brokerB", cluster="C1")
        for desk in self.brokers.values():
            desk.now_ms = 1_794_745_390_000

    def replay(self, name: str, *codes: int) -> list[tuple[StaticBroker, Command, Command]]:
        """Let a recording's requests of the tool arrive; return who was asked, what, and the answers."""
        answered = []
        for recorded in recordings.read(name):
            is_request = recorded.line["dir"] == ">" and not recorded.is_response
            if recorded.line["conn"] == "tools-broker" and is_request and recorded.code in codes:
                desk = self.brokers[PORTS[recorded.line["port"]]]
                answered.append((desk, recorded.command, self.ask_patiently(desk, recorded.command)))
        return answered

    def ask_patiently(self, desk: StaticBroker, command: Command) -> Command:
        """Ask, and let time pass until there is an answer."""
        answers = desk.call(command)
        for _ in range(100):
            if answers:
                return answers[0]
            for each in self.brokers.values():
                each.pass_time(50, "pauses", "calls")
            self.deliver_all()
            answers = list(desk.answers[1])
        raise AssertionError(f"no answer to {command.code}")


@pytest.fixture
def desks() -> ToolDesks:
    return ToolDesks()


def test_a_topic_is_created_and_grown(desks: ToolDesks):
    """Every 513 is taken, and 351 then says what the tool said, so that its own checks pass."""
    created = desks.replay("5.5.0-json-static-create", 351, 513)
    grown = desks.replay("5.5.0-json-static-grow", 351, 513)

    assert [answer.code for _, command, answer in created if command.code == 351] == [17, 17]
    assert {answer.code for _, command, answer in created + grown if command.code == 513} == {0}
    for desk, command, _ in [row for row in grown if row[1].code == 513]:
        (told,) = desk.call(Command(code=351, fields={"topic": TOPIC, "lo": "true"}))
        mapped = decode(told.body, MappedTopic)
        wanted = decode(command.body, MappingDetail)
        assert mapped.mapping is not None
        assert mapped.mapping.hosted == wanted.hosted
        assert (mapped.mapping.epoch, mapped.mapping.total) == (wanted.epoch, wanted.total)
        assert mapped.write_queues == int(command.fields["writeQueueNums"])


def test_a_remap_leaves_no_hole(desks: ToolDesks):
    """The tool plans to go on at 10000. The queue goes on at its exact end, and the tool is content."""
    desks.replay("5.5.0-json-static-create", 513)
    desks.replay("5.5.0-json-static-grow", 513)
    before = {number: desks.queue(number, TOPIC).leader.broker for number in range(4)}
    for number in range(4):
        desks.send(number, b"before", topic=TOPIC)

    asked = desks.replay("5.5.0-json-static-remap", 202, 513)

    assert {answer.code for _, _, answer in asked} == {0}
    after = {number: desks.queue(number, TOPIC) for number in range(4)}
    moved = [number for number, queue in after.items() if len(queue.segments) > 1]
    assert moved
    assert {number: desks.send(number, b"after", topic=TOPIC) for number in range(4)} == {
        number: [1] for number in range(4)
    }
    assert all(after[number].segments[0].broker == before[number] for number in moved)


def test_the_tool_reads_physical_ends(desks: ToolDesks):
    """202 tells the tool of physical queues, whatever logical queues they belong to."""
    desks.replay("5.5.0-json-static-create", 513)
    desks.send(1, b"one", topic=TOPIC)

    (answer,) = desks["brokerB"].call(Command(code=202, fields={"topic": TOPIC}, language="JAVA", version=495))
    (ours,) = desks["brokerB"].call(Command(code=202, fields={"topic": TOPIC, "lo": "true"}))

    assert b'"brokerName":"brokerB"' in answer.body
    assert b'"__syslo__global__"' in ours.body
    assert b'"queueId":1' in ours.body


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"bname": "brokerA"}, "belongs to brokerA"),
        ({"epoch": 5, "totalQueues": 3}, "older"),
        ({"totalQueues": 1}, "logical queues"),
        ({"topic": "Other"}, "Other"),
        ({"dirty": True}, "dirty"),
    ],
)
def test_a_record_that_cannot_be_true_is_refused_by_name(desks: ToolDesks, change: dict[str, object], word: str):
    """And nothing changes: neither the mapping nor the number of queues."""
    created = desks.replay("5.5.0-json-static-create", 513)
    desk, command, _ = next(row for row in created if row[0] is desks["brokerB"])
    before = desk.components.mappings.find(TOPIC)
    detail = java_json.loads(command.body) | {"epoch": 1_799_999_999_999} | change

    (answer,) = desk.call(
        Command(code=513, fields=command.fields | {"writeQueueNums": "9"}, body=msgspec.json.encode(detail))
    )

    assert answer.code == 29
    assert word in (answer.remark or "")
    assert desk.components.mappings.find(TOPIC) == before
    config = desk.components.topics.find(TOPIC)
    assert config is not None
    assert config.write_queues == 1
