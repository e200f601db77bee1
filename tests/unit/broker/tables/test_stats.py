import pytest

from holdfast.broker.tables.stats import (
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    SAMPLE_INTERVAL_MS,
    TIMER,
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
    BrokerStats,
    Counter,
    Rate,
)
from holdfast.machine.effects import SetTimer
from holdfast.machine.turn import Turn

DAY_MS = 86_400_000


def run(stats: BrokerStats, start_ms: int, seconds: int) -> None:
    for now_ms in range(start_ms + SAMPLE_INTERVAL_MS, start_ms + seconds * 1000 + 1, SAMPLE_INTERVAL_MS):
        stats._turn.now_ms = now_ms
        stats.on_timer()


@pytest.fixture
def stats() -> BrokerStats:
    stats = BrokerStats(Turn())
    stats.start()
    return stats


def test_the_sends_of_a_read_are_counted_by_topic(stats: BrokerStats) -> None:
    """Messages and bytes."""
    stats.count_puts("A", 3, 300)
    stats.count_puts("B", 1, 50)
    stats.count_puts("B", 1, 50)

    assert stats.puts.value == 5
    assert stats.named(TOPIC_PUT_NUMS, "A").value == 3
    assert stats.named(TOPIC_PUT_NUMS, "B").value == 2
    assert stats.named(TOPIC_PUT_SIZE, "A").value == 300


def test_what_a_group_gets_is_counted_by_topic_and_size(stats: BrokerStats) -> None:
    """The key is upstream's."""
    stats.count_gets("g", "T", 3, 300)
    stats.count_gets("g", "T", 1, 100)

    assert stats.gets.value == 4
    assert stats.named(GROUP_GET_NUMS, "T@g").value == 4
    assert stats.named(GROUP_GET_SIZE, "T@g").value == 400
    assert stats.pulls_found.value == 2


def test_a_rate_is_what_happened_within_the_last_minute(stats: BrokerStats) -> None:
    """Counted from the samples; what is older has no part in it."""
    stats.count_puts("T", 600, 0)
    run(stats, 0, 60)

    assert stats.put_tps("T") == pytest.approx(10.0)
    run(stats, 60_000, 60)
    assert stats.put_tps("T") == 0.0


def test_minute_hour_and_day_are_told_apart() -> None:
    """Each row takes its samples at its own pace."""
    counter = Counter()
    counter.sample(0)
    for second in range(10, 7_201, 10):
        counter.value += 10
        counter.times += 5
        counter.sample(second * 1000)

    rates = counter.rates()

    assert rates.stats_minute == Rate(sum=60, tps=1.0, avgpt=2.0)
    assert rates.stats_hour == Rate(sum=3600, tps=1.0, avgpt=2.0)
    assert rates.stats_day == Rate(sum=7200, tps=1.0, avgpt=2.0)
    assert (counter.tps(10_000), counter.tps(60_000), counter.tps(600_000)) == (1.0, 1.0, 1.0)


def test_a_counter_without_samples_has_no_rate() -> None:
    """One sample is none, either."""
    counter = Counter()
    assert counter.tps(10_000) == 0.0

    counter.sample(0)

    assert counter.rates().stats_minute == Rate()
    assert counter.tps(10_000) == 0.0


def test_totals_at_midnight_are_remembered() -> None:
    """Tools show what came today and what came yesterday."""
    turn = Turn(DAY_MS - 1)
    stats = BrokerStats(turn)
    stats.start()
    stats.count_puts("T", 5, 0)
    turn.now_ms = DAY_MS
    stats.on_timer()
    stats.count_puts("T", 2, 0)
    stats.count_gets("g", "T", 3, 30)
    turn.now_ms = 2 * DAY_MS
    stats.on_timer()

    assert stats.at_midnights() == ((7, 3), (5, 0))


def test_samples_are_taken_every_ten_seconds() -> None:
    """Each timer sets the next."""
    turn = Turn(10_000)
    stats = BrokerStats(turn)

    stats.start()
    assert turn.effects == [SetTimer(TIMER, 20_000)]
    turn.effects.clear()
    stats.on_timer()

    assert turn.effects == [SetTimer(TIMER, 20_000)]


def test_counters_of_a_deleted_topic_are_dropped(stats: BrokerStats) -> None:
    """But not those of its namesakes; counting goes on from nothing if it comes back."""
    stats.count_puts("T", 1, 0)
    stats.count_puts("T2", 1, 0)
    stats.count_gets("g", "T", 1, 10)

    stats.forget_topic("T")

    assert stats.find_named(TOPIC_PUT_NUMS, "T") is None
    assert stats.find_named(GROUP_GET_NUMS, "T@g") is None
    assert stats.find_named(TOPIC_PUT_NUMS, "T2") is not None
    stats.count_puts("T", 1, 0)
    stats.count_gets("g", "T", 1, 10)
    assert stats.named(TOPIC_PUT_NUMS, "T").value == 1
    assert stats.named(GROUP_GET_NUMS, "T@g").value == 1


def test_the_brokers_own_totals_have_names(stats: BrokerStats) -> None:
    """Tools ask for them by these."""
    stats.count_puts("T", 1, 0)

    total = stats.find_named("BROKER_PUT_NUMS", "DefaultCluster")

    assert total is not None
    assert total.value == 1
