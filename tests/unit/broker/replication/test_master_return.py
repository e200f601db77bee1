"""A master that comes back, and what it hears before anybody hears of it."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.cluster.broker_machine import BrokerHarness
from tests.support.cluster.replica_machines import ReplicaPair

from holdfast.broker.flow.awaitables import CALLS
from holdfast.broker.naming.registration import PURPOSE as REGISTRATION
from holdfast.broker.replication.ha_master import HAD_REPLICA_PATH
from holdfast.machine.effects import OpenChannel
from holdfast.machine.events import ChannelFailed, ChannelId, ChannelOpened, FramesReceived
from holdfast.model.topic import TopicConfig
from holdfast.sim.world.disk import SimDisk
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, encode_command
from holdfast.wire.frames.frame import split_frames

NAME_SERVER = "10.0.0.5:9876"
REPLICA = "10.0.0.8:10911"
INFO = msgspec.json.encode(
    {
        "brokerAddrTable": {
            "broker-a": {"cluster": "C", "brokerName": "broker-a", "brokerAddrs": {"1": REPLICA}},
            "other": {"cluster": "C", "brokerName": "other", "brokerAddrs": {"1": "10.0.0.9:1"}},
        },
        "clusterAddrTable": {"C": ["broker-a"]},
    }
)


class Returning(BrokerHarness):
    """A broker with one name server, whose calls are answered by hand."""

    def __init__(self, disk: SimDisk) -> None:
        super().__init__(disk=disk, namesrv=(NAME_SERVER,))

    def dialed(self, purpose: str) -> list[str]:
        """Return whom it has dialed."""
        return [
            effect.address for effect in self.effects if isinstance(effect, OpenChannel) and effect.purpose == purpose
        ]

    def take_call(self, address: str, channel: int, answer: bytes | None) -> Command | None:
        """Take a call to *address*, and answer it unless nobody is there; return what was asked."""
        if answer is None:
            self.feed(ChannelFailed(address, "refused", self.now_ms, CALLS))
            return None
        self.answers[channel] = []
        self.feed(ChannelOpened(ChannelId(channel), address, self.now_ms, address, CALLS))
        (asked,) = self.answers[channel]
        self.answers[channel] = []
        reply = Command(code=0, opaque=asked.opaque, flag=1, body=answer)
        frames, _ = split_frames(memoryview(encode_command(reply)))
        self.feed(FramesReceived(ChannelId(channel), frames, self.now_ms))
        return asked


@pytest.fixture
def desk() -> Returning:
    """A broker that once had a replica, and has just started."""
    disk = SimDisk()
    disk.replace(HAD_REPLICA_PATH, b"")
    disk.replace("config/consumerOffset.json", b'{"offsetTable":{"T@g":{0:5,1:5}}}')
    disk.replace("config/topics.json", b'{"topicConfigTable":{}}')
    returning = Returning(disk)
    returning.components.topics.put(TopicConfig(name="T"))
    returning.components.topics.changed.clear()
    return returning


def test_what_was_committed_at_the_replica_is_known_before_the_broker_registers(desk: Returning) -> None:
    """Only what is newer; and only replicas of its own are asked."""
    assert (desk.dialed(CALLS), desk.dialed(REGISTRATION)) == ([NAME_SERVER], [])
    asked = desk.take_call(NAME_SERVER, 8, INFO)
    assert asked is not None
    assert asked.code == RequestCode.GET_BROKER_CLUSTER_INFO
    assert (desk.dialed(CALLS), desk.dialed(REGISTRATION)) == ([NAME_SERVER, REPLICA], [])

    asked = desk.take_call(REPLICA, 9, b'{"offsetTable":{"T@g":{"0":9,"1":3},"T@new":{"0":1},"deleted@g":{"0":7}}}')

    assert asked is not None
    assert asked.code == RequestCode.GET_REPLICA_COMMITS
    offsets = desk.components.offsets
    assert [offsets.find("g", "T", 0), offsets.find("g", "T", 1), offsets.find("new", "T", 0)] == [9, 5, 1]
    assert offsets.find("g", "deleted", 0) is None, "the replica was away when the topic was deleted"
    assert desk.dialed(REGISTRATION) == [NAME_SERVER]


@pytest.mark.parametrize("answer", [None, b"nonsense"])
def test_a_replica_that_does_not_answer_is_not_waited_for(desk: Returning, answer: bytes | None) -> None:
    """It tells what it has when it follows again."""
    desk.take_call(NAME_SERVER, 8, INFO)
    desk.take_call(REPLICA, 9, answer)

    assert desk.dialed(REGISTRATION) == [NAME_SERVER]
    assert desk.components.offsets.find("g", "T", 0) == 5


def test_a_name_server_that_is_down_does_not_keep_the_broker_from_trying(desk: Returning) -> None:
    """It registers as soon as there is one."""
    desk.take_call(NAME_SERVER, 8, None)

    assert desk.dialed(REGISTRATION) == [NAME_SERVER]


def test_a_master_remembers_that_it_had_a_replica() -> None:
    """And a replica tells what was committed at it."""
    pair = ReplicaPair()
    pair.sync_tables()
    assert pair.master.disk.read_file(HAD_REPLICA_PATH) is None
    pair.connect_and_catch_up()
    assert pair.master.disk.read_file(HAD_REPLICA_PATH) == b""

    pair.replica.components.offsets.commit("g", "T", 0, 3)
    (answer,) = pair.replica.call(Command(code=RequestCode.GET_REPLICA_COMMITS))

    assert msgspec.json.decode(answer.body) == {"offsetTable": {"T@g": {"0": 3}}}
