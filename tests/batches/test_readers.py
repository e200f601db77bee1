"""Who gets a batch as it is stored, who gets its messages, and that both get exactly what they asked for."""

from __future__ import annotations

import pytest
from tests.support.batch_bytes import (
    BATCH,
    CODECS,
    JAVA_4,
    JAVA_5,
    BatchMessage,
    a_batch,
    a_single,
    batch_messages,
    compress,
    encode_messages,
    java_batch,
    pull,
    pull_all,
    send,
)
from tests.support.cluster.broker_machine import BrokerHarness

from holdfast.wire.records.properties import parse_properties

OURS = {"opensBatches": "true"}
OLD_READERS = {
    "Java 4": JAVA_4,
    "Java 4.9.8, the last before 5": {"language": "JAVA", "version": 412},
    "Go of any version": {"language": "GO", "version": 513},
    "C++ of any version": {"language": "CPP", "version": 513},
    "another": {"language": "OTHER", "version": 513},
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("serializer", [0, 1])
def test_who_opens_batches_gets_the_record_as_it_came(desk: BrokerHarness, codec: str, serializer: int):
    """One lookup, one record, whoever it is; compression is undone by nobody but the consumer."""
    batch = batch_messages(10, size=40)
    send(desk, a_batch(batch, codec=codec))

    java = pull(desk, 0, client={**JAVA_5, "serializer": serializer})
    ours = pull(desk, 0, client={"serializer": serializer}, **OURS)

    for pulled in (java, ours):
        assert (pulled.code, pulled.next, pulled.min, pulled.max) == (0, 10, 0, 10)
        (record,) = pulled.records
        assert bytes(record.body) == compress(encode_messages(batch), codec)
        assert (record.offset, record.sys_flag) == (0, BATCH | CODECS[codec])


@pytest.mark.parametrize("offset", range(10))
def test_a_pull_from_the_middle_never_brings_the_head_again(desk: BrokerHarness, offset: int):
    """Java delivers all that a batch holds: it gets the rest alone. Ours drops what it did not ask for by itself."""
    send(desk, a_batch(batch_messages(10)))
    send(desk, a_batch(batch_messages(10, start=10)))

    java = pull_all(desk, offset, client=JAVA_5)
    ours = pull(desk, offset, **OURS)

    singles = [record for record in java if record.sys_flag & BATCH != BATCH]
    wholes = [record for record in java if record.sys_flag & BATCH == BATCH]
    assert [record.offset for record in singles] == (list(range(offset, 10)) if offset else [])
    assert [record.offset for record in wholes] == ([10] if offset else [0, 10])
    assert ours.offsets == [0, 10]
    assert ours.next == 20


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("reader", OLD_READERS)
def test_who_cannot_open_batches_gets_single_messages(desk: BrokerHarness, reader: str, codec: str):
    """Each with its own offset, flag, properties and body, and with the times and hosts of its batch."""
    batch = batch_messages(10, tags=("a", "b"), size=30)
    send(desk, a_batch(batch, codec=codec))
    (whole,) = pull(desk, 0, **OURS).records

    pulled = pull(desk, 3, client=OLD_READERS[reader])

    assert (pulled.code, pulled.next) == (0, 10)
    assert pulled.offsets == list(range(3, 10))
    for record, said in zip(pulled.records, batch[3:], strict=True):
        assert bytes(record.body) == said.body
        assert record.properties.rstrip(b"\x02") == said.properties.rstrip(b"\x02")
        assert (record.flag, record.sys_flag & (BATCH | 0x701)) == (said.flag, 0)
        assert (record.topic, record.queue_id, record.position) == ("T", 0, whole.position)
        assert (record.born_ms, record.store_ms) == (whole.born_ms, whole.store_ms)
        assert (record.born_host, record.store_host) == (whole.born_host, whole.store_host)


def test_one_message_at_a_time_can_be_read_out_of_any_batch(desk: BrokerHarness):
    """A thousand small pulls, and nothing twice or missing."""
    number = 0
    for size in (1, 40, 3, 300, 1, 1, 90):
        send(desk, (a_batch if size % 2 else java_batch)(batch_messages(size, start=number)))
        number += size

    found = pull_all(desk, count=1)

    assert [record.offset for record in found] == list(range(number))
    assert [bytes(record.body) for record in found] == [b"%d" % each for each in range(number)]


@pytest.mark.parametrize(
    ("offset", "count", "bases", "behind"),
    [(5, 1, [0], 20), (5, 34, [0], 20), (0, 40, [0, 20], 40), (5, 60, [0, 20, 40], 60), (19, 19, [0], 20)],
)
def test_whole_batches_count_as_all_their_messages(
    desk: BrokerHarness, offset: int, count: int, bases: list[int], behind: int
):
    """Those from the asked offset on: up to the asked number, but at least one record."""
    for start in range(0, 100, 20):
        send(desk, a_batch(batch_messages(20, start=start)))

    pulled = pull(desk, offset, count=count, **OURS)

    assert (pulled.offsets, pulled.next) == (bases, behind)


def test_size_limits_hold_for_batches_and_for_what_is_split(desk: BrokerHarness):
    """At least one comes, however large; then as much as was asked for."""
    for start in range(0, 40, 10):
        send(desk, a_batch(batch_messages(10, start=start, size=1000)))
    send(desk, a_single(BatchMessage(b"z" * 5000, "IDZ")))

    whole = pull(desk, 0, maxMsgBytes="100", **OURS)
    single = pull(desk, 12, maxMsgBytes="100")
    several = pull(desk, 8, maxMsgBytes="5000")

    assert whole.offsets == [0]
    assert single.offsets == [12]
    assert several.offsets == list(range(8, 8 + len(several.records)))
    assert 2 <= len(several.records) <= 5
    assert sum(record.size for record in several.records) <= 6200


@pytest.mark.parametrize("tag", ["a", "b", "nobody"])
@pytest.mark.parametrize("codec", ["plain", "zstd"])
def test_tags_inside_a_mixed_batch_reach_every_kind_of_reader(desk: BrokerHarness, tag: str, codec: str):
    """Upstream hides such a batch from everybody who wants a tag."""
    batch = batch_messages(12, tags=("a", "b", ""))
    send(desk, a_batch(batch, codec=codec))
    send(desk, a_batch(batch_messages(4, start=12, tags=("a",)), extra_properties={"TAGS": "a"}, codec=codec))

    single = pull_all(desk, subscription=tag)
    whole = pull_all(desk, subscription=tag, **OURS)

    wanted = [said.body for said in batch + batch_messages(4, start=12, tags=("a",)) if said.tag == tag]
    assert [bytes(record.body) for record in single] == wanted
    bases = [record.offset for record in whole]
    assert 0 in bases, "whoever opens it looks at each message"
    assert (12 in bases) == (tag == "a"), "a batch of another tag costs nobody anything"


def test_a_batch_of_nothing_wanted_is_passed_at_once(desk: BrokerHarness):
    """The reader hears that it shall go on, and where; it does not wait behind it."""
    send(desk, a_batch(batch_messages(12, tags=("a", "b"))))
    send(desk, a_batch(batch_messages(3, start=12, tags=("c", "d"))))

    pulled = pull(desk, 0, subscription="c", sysFlag="6")
    last = pull(desk, 13, subscription="a")

    assert pulled.offsets == [12, 14] or (pulled.code, pulled.next) == (20, 12)
    assert (last.code, last.next, last.records) == (20, 15, [])


def test_properties_of_messages_are_their_own(desk: BrokerHarness):
    """What is said outside, of the batch, is said of no message of it."""
    batch = batch_messages(3)
    send(desk, a_batch(batch, extra_properties={"KEYS": "key0 key1 key2", "COLOUR": "red", "INNER_IDS": "next"}))

    found = [parse_properties(record.properties.decode()) for record in pull(desk, 0).records]

    assert [properties["UNIQ_KEY"] for properties in found] == [said.id for said in batch]
    assert [properties["KEYS"] for properties in found] == ["key0", "key1", "key2"]
    for properties in found:
        assert not {"INNER_NUM", "INNER_BASE", "INNER_IDS", "COLOUR"} & properties.keys()
