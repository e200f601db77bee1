"""What the directory and a followed ACL 1.0 file say together."""

from __future__ import annotations

import pytest
from tests.support.access import SECRET, Users, guarded_broker, signed
from tests.support.cluster.broker_machine import BrokerHarness, a_send
from tests.support.cluster.machine import codes

from holdfast.access.acl_file_reader import read_acl_files
from holdfast.wire.frames.codes import ResponseCode

FILE = b"""
globalWhiteRemoteAddresses: [10.0.0.9]
accounts:
- accessKey: old-alice
  secretKey: the-secret-of-old-alice
  whiteRemoteAddress: 10.0.0.8
  topicPerms: [T=PUB]
"""
OLD_SECRET = "the-secret-of-old-alice"
NO = int(ResponseCode.NO_PERMISSION)


@pytest.fixture
def desk() -> BrokerHarness:
    broker = guarded_broker()
    for topic in ("T", "U"):
        broker.make_topic(topic)
    Users(broker).add("bob", "Topic:U Pub")
    broker.components.access_store.follow(read_acl_files([("plain_acl.yml", FILE)]))
    return broker


def test_users_of_both_are_known(desk: BrokerHarness) -> None:
    """Each with its own rules."""
    assert codes(desk.call(signed(a_send("T"), "old-alice", OLD_SECRET))) == [0]
    assert codes(desk.call(signed(a_send("U"), "old-alice", OLD_SECRET))) == [NO]
    assert codes(desk.call(signed(a_send("U"), "bob"))) == [0]


def test_a_user_of_the_directory_hides_the_account_of_the_same_name(desk: BrokerHarness) -> None:
    """An operator who takes an account over is not surprised by the file: neither by its secret nor its rights."""
    Users(desk).add("old-alice", "Topic:U Pub")

    assert codes(desk.call(signed(a_send("T"), "old-alice", OLD_SECRET))) == [NO]
    assert codes(desk.call(signed(a_send("T"), "old-alice", SECRET))) == [NO]
    assert codes(desk.call(signed(a_send("U"), "old-alice", SECRET))) == [0]
    assert codes(desk.call(a_send("T", AccessKey="old-alice"), channel=desk.connect(8))) == [NO]


def test_a_white_address_needs_nothing(desk: BrokerHarness) -> None:
    """That of all accounts no user, that of one account no signature; others need both."""
    everything, one, other = desk.connect(9), desk.connect(8), desk.connect(7)

    assert codes(desk.call(a_send("U"), channel=everything)) == [0]
    assert codes(desk.call(a_send("T", AccessKey="old-alice"), channel=one)) == [0]
    assert codes(desk.call(a_send("U", AccessKey="old-alice"), channel=one)) == [NO]
    assert codes(desk.call(a_send("T", AccessKey="old-alice"), channel=other)) == [NO]


def test_a_change_of_the_file_counts_at_once(desk: BrokerHarness) -> None:
    """On open connections."""
    everything = desk.connect(9)
    assert codes(desk.call(a_send("U"), channel=everything)) == [0]

    desk.components.access_store.follow(None)

    assert codes(desk.call(a_send("U"), channel=everything)) == [NO]
    assert codes(desk.call(signed(a_send("T"), "old-alice", OLD_SECRET))) == [NO]
    assert codes(desk.call(signed(a_send("U"), "bob"))) == [0]
