"""Turns by key."""

import asyncio

from holdfast.client.produce.key_sequencer import KeySequencer


class Stage:
    """Lets a test see who goes, and decide when they are done."""

    def __init__(self) -> None:
        self.order = KeySequencer()
        self.going: list[str] = []
        self.may_end: dict[str, asyncio.Event] = {}

    def enter(self, name: str, *keys: str) -> asyncio.Task[None]:
        """Let somebody come with *keys*."""
        self.may_end[name] = asyncio.Event()

        async def act() -> None:
            with self.order.turn(keys) as turn:
                await turn.wait_until_ready()
                self.going.append(name)
                await self.may_end[name].wait()

        return asyncio.create_task(act())

    async def settle(self) -> list[str]:
        """Return who went, in order, once nobody can go any further."""
        for _ in range(10):
            await asyncio.sleep(0)
        return self.going


async def test_one_key_goes_one_by_one_in_order():
    """Other keys do not wait."""
    stage = Stage()
    tasks = [stage.enter("a1", "a"), stage.enter("a2", "a"), stage.enter("b1", "b"), stage.enter("a3", "a")]
    assert await stage.settle() == ["a1", "b1"]

    stage.may_end["a1"].set()
    assert await stage.settle() == ["a1", "b1", "a2"]
    stage.may_end["a2"].set()
    assert await stage.settle() == ["a1", "b1", "a2", "a3"]

    for event in stage.may_end.values():
        event.set()
    await asyncio.gather(*tasks)
    assert not stage.order._lines


async def test_several_keys_wait_for_all_before_them():
    """And whoever comes after waits for them."""
    stage = Stage()
    tasks = [stage.enter("a", "a"), stage.enter("b", "b"), stage.enter("ab", "a", "b"), stage.enter("a2", "a")]
    stage.may_end["a"].set()
    assert await stage.settle() == ["a", "b"]

    stage.may_end["b"].set()
    assert await stage.settle() == ["a", "b", "ab"]

    for event in stage.may_end.values():
        event.set()
    await asyncio.gather(*tasks)
    assert stage.going[-1] == "a2"


async def test_one_who_gives_up_does_not_let_others_pass_those_in_front():
    """The next one waits for the one that is still going."""
    stage = Stage()
    first, second, third = stage.enter("1", "k"), stage.enter("2", "k"), stage.enter("3", "k")
    await stage.settle()

    second.cancel()
    assert await stage.settle() == ["1"]

    stage.may_end["1"].set()
    assert await stage.settle() == ["1", "3"]
    stage.may_end["3"].set()
    await asyncio.gather(first, third)
    assert not stage.order._lines


async def test_one_who_gives_up_first_in_one_line_and_second_in_another_holds_up_nobody():
    """Whoever is behind them in the first line goes; in the second, nothing changes."""
    stage = Stage()
    tasks = [stage.enter("a", "a"), stage.enter("ab", "b", "a"), stage.enter("b", "b"), stage.enter("a2", "a")]
    assert await stage.settle() == ["a"]

    tasks[1].cancel()
    assert await stage.settle() == ["a", "b"]

    stage.may_end["a"].set()
    assert await stage.settle() == ["a", "b", "a2"]
    for event in stage.may_end.values():
        event.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not stage.order._lines


def test_a_turn_that_has_come_need_not_be_awaited():
    """Most of the time nobody is in front."""
    order = KeySequencer()

    with order.turn(["a"]) as first, order.turn(["a", "b"]) as second:
        assert first.is_ready
        assert not second.is_ready
    with order.turn(["a"]) as third:
        assert third.is_ready
