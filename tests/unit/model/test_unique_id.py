"""Ids that clients give their messages."""

from datetime import UTC, datetime, timedelta, timezone

from holdfast.model.unique_id import UniqueIds


def ms(when: datetime) -> int:
    return int(when.timestamp() * 1000)


def test_an_id_is_laid_out_as_upstream_does():
    """Address, process, salt, milliseconds of the month, count."""
    ids = UniqueIds(host=bytes([10, 0, 0, 1]), process=0x12345, salt=0xDEADBEEF)

    text = ids.next(ms(datetime(2026, 11, 1, 0, 0, 1, tzinfo=UTC)))

    assert text == "0A000001" + "2345" + "DEADBEEF" + "000003E8" + "0001"


def test_an_address_of_version_six_makes_it_longer():
    """Sixteen bytes instead of four."""
    assert len(UniqueIds(host=bytes(16), process=1, salt=1).next(0)) == 56


def test_no_two_ids_are_equal():
    """Within one millisecond, up to what the counter can tell apart."""
    ids = UniqueIds(host=bytes(4), process=1, salt=1)

    assert len({ids.next(1700000000000) for _ in range(65536)}) == 65536


def test_many_ids_are_those_that_would_come_one_by_one():
    """Also over the end of the counter, and in another month."""
    one, many = (UniqueIds(host=bytes(4), process=1, salt=1) for _ in range(2))

    for now_ms, count in ((1700000000000, 3), (1700000000000, 65_536), (1710000000000, 2), (1710000000001, 1)):
        assert many.next_many(now_ms, count) == [one.next(now_ms) for _ in range(count)]


def test_the_month_begins_in_local_time():
    """Others compute the time of sending from it, with their own clock on the wall."""
    zone = timezone(timedelta(hours=8))
    ids = UniqueIds(host=bytes(4), process=1, salt=1, utc_offset_ms=8 * 3_600_000)

    text = ids.next(ms(datetime(2026, 12, 1, 0, 0, 0, 500_000, tzinfo=zone)))

    assert int(text[20:28], 16) == 500


def test_a_new_month_begins_at_zero():
    """Also from December to January, and when the clock goes back."""
    ids = UniqueIds(host=bytes(4), process=1, salt=1)
    december = ms(datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC))

    times = [int(ids.next(when)[20:28], 16) for when in (december, december + 1000, december)]

    assert times == [(31 * 86_400 - 1) * 1000, 0, (31 * 86_400 - 1) * 1000]
