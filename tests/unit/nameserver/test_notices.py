"""What is owed to whom, and when it is told."""

import random

import pytest

from holdfast.machine.events import ChannelId
from holdfast.nameserver.notices import BrokerEvents, ChangeCause, NoticeSchedule, classify_registration
from holdfast.wire.cluster.watch import TEXT_MAX, split_topics

A, B = ChannelId(1), ChannelId(2)


def some_notices(
    *, broker_events: BrokerEvents = "spread", spread_ms: int = 5_000, rate_max: int = 20_000, seed: int = 1
) -> NoticeSchedule:
    """Return notices that nobody is owed yet."""
    return NoticeSchedule(random.Random(seed), broker_events=broker_events, spread_ms=spread_ms, rate_max=rate_max)


def tick(notices: NoticeSchedule) -> dict[ChannelId, list[str]]:
    """Let one tick pass; return who was told of which topics."""
    notices.tick()
    notices.begin_round()
    told: dict[ChannelId, list[str]] = {}
    while notices.is_sending:
        for channel, texts in notices.next_batch(7):
            told.setdefault(channel, []).extend(topic for text in texts for topic in split_topics(text))
    return told


def test_a_change_is_told_at_the_next_tick_once():
    """To those who watch it."""
    notices = some_notices()

    notices.add([("orders", [A, B]), ("bills", [B])], ChangeCause.TOPIC)

    assert len(notices) == 2
    assert tick(notices) == {A: ["orders"], B: ["bills", "orders"]}
    assert (tick(notices), len(notices), notices.sent) == ({}, 0, 2)


def test_changes_of_one_tick_are_one_notice_that_names_each_topic_once():
    """Whatever happened how often."""
    notices = some_notices()
    for topic in ("orders", "bills", "orders"):
        notices.add([(topic, [A])], ChangeCause.TOPIC)

    assert tick(notices) == {A: ["bills", "orders"]}
    assert notices.sent == 1


def test_a_broker_event_is_spread_and_reaches_everybody_within_the_spread():
    """No tick has more than its share by much, and after four ticks, five seconds at most, all know."""
    notices = some_notices(spread_ms=5_000)
    clients = [ChannelId(number) for number in range(1000)]

    notices.add([("orders", clients), ("bills", clients)], ChangeCause.BROKER)
    rounds = [tick(notices) for _ in range(4)]

    assert all(200 < len(told) < 300 for told in rounds)
    assert sorted(channel for told in rounds for channel in told) == clients
    assert all(topics == ["bills", "orders"] for told in rounds for topics in told.values())
    assert len(notices) == 0


@pytest.mark.parametrize("spread_ms", [0, 1, 1_000, 2_000])
def test_a_short_spread_is_the_next_tick(spread_ms: int):
    """Nothing is faster than that, and nothing waits for longer."""
    notices = some_notices(spread_ms=spread_ms)
    clients = [ChannelId(number) for number in range(50)]

    notices.add([("orders", clients)], ChangeCause.BROKER)

    assert len(tick(notices)) == 50


def test_a_plain_change_takes_along_what_waits_for_a_later_moment():
    """Everything goes at the sooner one, in one notice."""
    notices = some_notices(spread_ms=60_000, seed=3)
    notices.add([("orders", [A])], ChangeCause.BROKER)
    assert tick(notices) == {}

    notices.add([("bills", [A])], ChangeCause.TOPIC)

    assert tick(notices) == {A: ["bills", "orders"]}
    assert [tick(notices) for _ in range(60)] == [{}] * 60


def test_a_broker_event_does_not_hold_up_what_is_due_sooner():
    """It is told along."""
    notices = some_notices(spread_ms=60_000)
    notices.add([("bills", [A])], ChangeCause.TOPIC)

    notices.add([("orders", [A])], ChangeCause.BROKER)

    assert tick(notices) == {A: ["bills", "orders"]}


def test_a_second_broker_event_does_not_put_the_first_off():
    """A broker that comes and goes forever must not keep a client uninformed."""
    notices = some_notices(spread_ms=5_000)
    notices.add([("orders", [A])], ChangeCause.BROKER)

    told = []
    for _ in range(4):
        notices.add([("bills", [A])], ChangeCause.BROKER)
        told.append(tick(notices))

    assert {A: ["bills", "orders"]} in told


def test_where_broker_events_are_off_only_changes_are_told():
    """Routes that a broker's arrival changed are not even compared: they still differ when a change of them comes."""
    notices = some_notices(broker_events="off")
    changes = iter([("orders", [A])])

    notices.add(changes, ChangeCause.BROKER)
    notices.add([("bills", [A])], ChangeCause.TOPIC)

    assert tick(notices) == {A: ["bills"]}
    assert next(changes) == ("orders", [A])


def test_not_more_frames_leave_in_a_tick_than_allowed_and_the_oldest_go_first():
    """The rest goes with the next tick; nobody is forgotten, and nobody overtakes."""
    notices = some_notices(rate_max=3)
    notices.add([("orders", [ChannelId(number) for number in (5, 6, 7, 8)])], ChangeCause.TOPIC)
    assert len(tick(notices)) == 3
    notices.add([("bills", [ChannelId(number) for number in (1, 2, 3)])], ChangeCause.TOPIC)

    second, third = tick(notices), tick(notices)

    assert list(second) == [8, 1, 2]
    assert third == {3: ["bills"]}


def test_more_names_than_one_frame_takes_go_in_several():
    """Together they name every topic once."""
    notices = some_notices()
    topics = [f"{number:05}-{'x' * 100}" for number in range(2000)]
    notices.add([(topic, [A]) for topic in topics], ChangeCause.TOPIC)
    notices.tick()
    notices.begin_round()

    ((channel, texts),) = notices.next_batch(10)

    assert channel == A
    assert [topic for text in texts for topic in split_topics(text)] == topics
    assert len(texts) == 4
    assert all(len(text) <= TEXT_MAX for text in texts)
    assert notices.sent == 4


def test_clients_that_are_owed_much_come_fewer_at_a_time():
    """Others have a turn in between; none is left out."""
    notices = some_notices()
    topics = [f"topic-{number}" for number in range(64)]
    notices.add([(topic, [ChannelId(number) for number in range(10)]) for topic in topics], ChangeCause.TOPIC)
    notices.tick()
    notices.begin_round()

    assert [len(list(notices.next_batch(8))) for _ in range(4)] == [4, 4, 2, 0]


def test_what_is_too_much_for_one_tick_even_for_a_single_client_goes_over_several():
    """A limit of one frame a second still tells everything."""
    notices = some_notices(rate_max=1)
    topics = [f"{number:05}-{'x' * 100}" for number in range(2000)]
    notices.add([(topic, [A]) for topic in topics], ChangeCause.TOPIC)

    rounds = [tick(notices) for _ in range(5)]

    assert [topic for told in rounds for topic in told.get(A, [])] == topics
    assert [len(told) for told in rounds] == [1, 1, 1, 1, 0]


def test_a_tick_without_sending_forgets_nothing():
    """Whatever is due stays due, and more is added."""
    notices = some_notices()
    notices.add([("orders", [A])], ChangeCause.TOPIC)
    notices.tick()
    notices.tick()
    notices.add([("bills", [A])], ChangeCause.TOPIC)

    assert tick(notices) == {A: ["bills", "orders"]}


def test_who_is_gone_is_owed_nothing():
    """Also in the middle of a round."""
    notices = some_notices()
    notices.add([("orders", [A, B])], ChangeCause.TOPIC)
    notices.tick()
    notices.begin_round()
    assert [channel for channel, _ in notices.next_batch(1)] == [A]

    notices.channel_closed(B)

    assert (list(notices.next_batch(1)), len(notices), notices.is_sending) == ([], 0, False)


def test_who_does_not_want_to_hear_of_a_topic_is_not_told():
    """Of the others it is."""
    notices = some_notices()
    notices.add([("orders", [A, B]), ("bills", [A])], ChangeCause.TOPIC)

    notices.cancel(A, ["orders", "nothing"])
    notices.cancel(B, ["orders"])

    assert tick(notices) == {A: ["bills"]}


def test_a_change_in_the_middle_of_a_round_is_told_at_the_next_tick():
    """Whether its client has been told in this round or not, it hears of it."""
    notices = some_notices()
    notices.add([("orders", [A, B])], ChangeCause.TOPIC)
    notices.tick()
    notices.begin_round()
    (first,) = notices.next_batch(1)

    notices.add([("bills", [A, B])], ChangeCause.TOPIC)

    assert first == (A, ["orders"])
    assert list(notices.next_batch(5)) == [(B, ["bills;orders"])]
    assert tick(notices) == {A: ["bills"]}


@pytest.mark.parametrize(
    ("broker_events", "is_first", "topic_count", "occasion"),
    [
        ("spread", True, 1, ChangeCause.BROKER),
        ("spread", True, 9, ChangeCause.BROKER),
        ("spread", False, 1, ChangeCause.TOPIC),
        ("spread", False, 9, ChangeCause.TOPIC),
        ("off", True, 0, ChangeCause.TOPIC),
        ("off", True, 1, ChangeCause.TOPIC),
        ("off", True, 2, ChangeCause.BROKER),
        ("off", False, 1, ChangeCause.TOPIC),
        ("off", False, 2, ChangeCause.BROKER),
    ],
)
def test_a_registration_is_an_arrival_or_a_change(
    broker_events: BrokerEvents, topic_count: int, occasion: ChangeCause, *, is_first: bool
):
    """By default by who is known; where arrivals are not told, by the number of topics, as the proposal has it."""
    assert classify_registration(broker_events, is_first=is_first, topic_count=topic_count) is occasion
