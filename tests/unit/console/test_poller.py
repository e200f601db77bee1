"""One poller for all listeners: what it reads, when, and what each listener gets."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.support.cluster.scripted import ScriptedAccess
from tests.support.cluster.scripted_admin import scripted_admin

from holdfast.console.poller import LISTENERS_MAX, MAPS_MAX, Listener, Poller, Snapshot
from holdfast.console.problems import TooManyListeners
from holdfast.machine.effects import Log
from holdfast.model.errors import HoldfastError, RequestTimeout

Pass = Callable[["CountingPoller"], None]


class CountingPoller(Poller):
    """Publishes what a test says, in place of a cluster's state."""

    def __init__(self, read: Pass) -> None:
        self.logged: list[Log] = []
        super().__init__(scripted_admin(ScriptedAccess()), self.logged.append, pause_s=0.0, clock=lambda: 0.0)
        self._pass = read

    async def _read(self) -> None:
        self._pass(self)

    def publish(self, name: str, value: object) -> None:
        """Make a value the newest one."""
        self._publish(name, value)


async def until(condition: Callable[[], bool]) -> None:
    """Let the poller run until a condition holds."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never held")


async def with_poller(read: Pass, story: Callable[[CountingPoller], Awaitable[None]]) -> CountingPoller:
    """Run *story* while a poller runs."""
    poller = CountingPoller(read)
    poller.start()
    try:
        await story(poller)
    finally:
        await poller.stop()
    return poller


async def first_change(poller: Poller, listener: Listener) -> list[Snapshot]:
    async for found in poller.changes(listener, quiet_s=5):
        return found
    return []


async def test_nothing_is_read_while_nobody_listens():
    """Before the first listener and after the last one."""

    async def story(poller: CountingPoller) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        assert poller.passes == 0
        with poller.listen(frozenset()):
            await until(lambda: poller.passes > 2)
        passes = poller.passes
        for _ in range(20):
            await asyncio.sleep(0)
        assert poller.passes <= passes + 1  # the pass that was in progress

    await with_poller(lambda _: None, story)


async def test_many_listeners_cost_as_much_as_one():
    """Every pass is read once, and all of them get its value."""
    numbers: list[int] = []

    def read(poller: CountingPoller) -> None:
        numbers.append(len(numbers))
        poller.publish("cluster", numbers[-1])

    async def story(poller: CountingPoller) -> None:
        listeners = []
        for _ in range(20):
            context = poller.listen(frozenset())
            listeners.append((context, context.__enter__()))
        found = await asyncio.gather(*(first_change(poller, listener) for _, listener in listeners))
        assert all(any(each.name == "cluster" for each in changes) for changes in found)
        assert len(numbers) == poller.passes
        for context, _ in listeners:
            context.__exit__(None, None, None)
        assert poller.listeners == 0

    await with_poller(read, story)


async def test_a_slow_listener_gets_the_newest_value_only():
    """What it missed costs no memory; what has not changed is not sent again."""

    async def story(poller: CountingPoller) -> None:
        with poller.listen(frozenset({"t"})) as listener:
            for number in range(1000):
                poller.publish("topic/t", number)
            poller.publish("topic/other", 1)
            (found,) = await first_change(poller, listener)
            assert (found.name, msgspec.json.decode(found.data)) == ("topic/t", 999)

            poller.publish("topic/t", 999)
            poller.publish("cluster", 1)
            (following,) = await first_change(poller, listener)
            assert following.name == "cluster"

    await with_poller(lambda _: None, story)


async def test_a_failed_pass_is_reported_and_the_next_one_is_tried():
    """A fault of the cluster, and one of ours, which is also logged with its traceback."""
    errors: list[Exception] = [RequestTimeout("too slow"), ZeroDivisionError("ours")]

    def read(poller: CountingPoller) -> None:
        if errors:
            raise errors.pop(0)
        poller.publish("connection", {"is_connected": True})

    async def story(poller: CountingPoller) -> None:
        with poller.listen(frozenset()) as listener:
            seen: list[Any] = []
            async for found in poller.changes(listener, quiet_s=5):
                seen += [msgspec.json.decode(each.data) for each in found]
                if seen[-1]["is_connected"]:
                    break
            assert not seen[0]["is_connected"]

    poller = await with_poller(read, story)

    (line,) = poller.logged
    assert "ZeroDivisionError" in str(line.fields["exception"])


async def test_listeners_and_maps_are_limited():
    """The refusal says so; what leaves makes room."""
    poller = CountingPoller(lambda _: None)
    open_contexts = [poller.listen(frozenset({f"t{number % MAPS_MAX}"})) for number in range(LISTENERS_MAX)]
    for context in open_contexts:
        context.__enter__()

    with pytest.raises(TooManyListeners, match="pages are open"):
        poller.require_space(frozenset())
    open_contexts.pop().__exit__(None, None, None)
    with pytest.raises(TooManyListeners, match="different topics"):
        poller.require_space(frozenset({"one more"}))
    poller.require_space(frozenset({"t0"}))
    assert issubclass(TooManyListeners, HoldfastError)


async def test_what_was_read_long_ago_is_not_shown_to_the_next_listener():
    """It waits for a new pass."""
    poller = CountingPoller(lambda _: None)
    with poller.listen(frozenset()) as first:
        poller.publish("cluster", "old")
        assert await first_change(poller, first)

    with poller.listen(frozenset()) as second:
        poller.publish("moves", "new")
        assert [each.name for each in await first_change(poller, second)] == ["moves"]


async def test_listeners_end_when_the_poller_stops():
    """So that the console can stop although pages are open."""
    poller = CountingPoller(lambda _: None)
    poller.start()
    with poller.listen(frozenset()) as listener:
        pending = asyncio.create_task(first_change(poller, listener))
        await asyncio.sleep(0)
        await poller.stop()
        assert await pending == []
