"""Batches that grow, and the lines in which they stand."""

import asyncio
from collections.abc import Iterator

import pytest

from holdfast.client.produce.batch_lines import Batching, OpenBatch, TopicLines
from holdfast.model.errors import ConfigError, HoldfastError
from holdfast.model.message import Message, SendResult
from holdfast.model.queue import MessageQueue

Q0, Q1, Q2 = (MessageQueue("t", "b", number) for number in range(3))


def a_batch(count: int) -> OpenBatch:
    loop = asyncio.get_running_loop()
    batch = OpenBatch(loop.create_future(), lambda _: None)
    batch.messages = [Message("t", b"x")] * count
    batch.futures = [loop.create_future() for _ in range(count)]
    return batch


def results() -> Iterator[SendResult]:
    return iter([SendResult(str(number), Q1, 7 + number, "") for number in (1, 2)])


async def test_each_message_is_told_its_own_place():
    """The futures are completed in the order of the messages."""
    batch = a_batch(2)
    futures = list(batch.futures)

    batch.complete(results())

    assert [future.result() for future in futures] == [*results()]  # type: ignore[attr-defined] # they are asyncio's


async def test_who_does_not_want_to_know_is_not_told():
    """Neither of a place nor of a failure."""
    for tell in (
        lambda batch: batch.complete(results()),
        lambda batch: batch.fail(HoldfastError("no")),
        lambda batch: batch.cancel(),
    ):
        batch = a_batch(2)
        batch.futures[0].cancel()
        tell(batch)
        assert all(future.done() for future in batch.futures)
        if not batch.futures[1].cancelled():  # type: ignore[attr-defined]
            batch.futures[1].exception()  # type: ignore[attr-defined]


def test_other_queues_leave_lines_alone_that_are_busy():
    """Somebody waits for what is in them; the others would stay for ever."""
    lines = TopicLines("t")
    for queue in (Q0, Q1, Q2):
        lines.line_of(queue)
    lines.key_cache["a"] = (lines.line_of(Q0), b"")
    lines.line_of(Q1).in_flight = 1

    lines.spread_over((Q2,))

    assert (set(lines.lines), lines.key_cache, lines.publishable) == ({Q1}, {}, (Q2,))


@pytest.mark.parametrize(
    "options",
    [
        {"linger_s": -1},
        {"bytes_max": 0},
        {"bytes_max": 16 << 20},
        {"messages_max": 0},
        {"messages_max": 40_000},
        {"waiting_bytes_max": 0},
    ],
)
def test_impossible_options_are_refused(options: dict[str, int]):
    """When they are given, not when the first message comes."""
    with pytest.raises(ConfigError):
        Batching(**options)
