"""Opening and closing units (`holdfast dr`), and what is left of the backlog of one that is open.

    look at all name servers ─> would it change anything? ─> tell all name servers ─> tell all brokers
                                                             one that is away hears of it from brokers, when it is back

Name servers do not talk to each other; brokers carry the newest switch from one to the other. What is left, and what
cannot be read, is found out from the brokers and from what name servers remember of the dead. Of several name servers
the one is believed that has been there longest: to one that was just started brokers have yet to come, and where all of
them were, they are waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from holdfast.admin.cluster_access import Broker, NameServerUnreachable, NotAllowed, NotFound, Reach, body_of, gather
from holdfast.admin.groups import SYSTEM_PREFIXES, GroupLag, Groups
from holdfast.model.dr_switch import CLOSED, EVERY_UNIT, Opening, Switch
from holdfast.model.errors import BrokerRefused, ConnectionLost, RequestTimeout
from holdfast.model.mapping import MergedTopic, merge
from holdfast.model.scope import GLOBAL
from holdfast.model.spelling_hint import nearest
from holdfast.wire.cluster.mapping import from_info
from holdfast.wire.cluster.route import TopicList
from holdfast.wire.cluster.units import KnownUnit, UnitState, encode_switch
from holdfast.wire.frames.codes import OUR_LANGUAGE, RequestCode, ResponseCode

SETTLED_MS: Final = 3_000
"""Brokers dial a name server that they lost every second."""


class ServerSwitch(msgspec.Struct, frozen=True, kw_only=True):
    """What one name server has.

    Attributes:
        fault: Why it did not tell; None when it did.
    """

    address: str
    version: int | None = None
    fault: str | None = None


class Unreadable(msgspec.Struct, frozen=True):
    """Queues of a static topic that cannot be read to their end, as a broker that has a part of them is gone."""

    topic: str
    broker: str
    queues: list[int]


class GroupBacklog(msgspec.Struct, frozen=True):
    """What a group has still to read in a unit.

    Attributes:
        lag: How many messages that can be counted.
        unknown: How many logical queues nobody can tell of, as their leader is down.
    """

    group: str
    lag: int
    unknown: int


class UnitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One unit.

    Attributes:
        openings: As which it is open, in words; none: it is not.
        backlogs: Of groups that have something left to read; only of a unit that is open.
        unreadable: What cannot be read; the same.
    """

    name: str
    brokers: list[str]
    openings: list[str] = []
    backlogs: list[GroupBacklog] = []
    unreadable: list[Unreadable] = []


class DisasterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is open, who knows of it, and what is left to read.

    Attributes:
        is_equal: Whether every name server that answers has the same.
    """

    version: int
    openings: list[Opening]
    name_servers: list[ServerSwitch]
    is_equal: bool
    units: list[UnitStatus]


class SwitchChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was made.

    Attributes:
        told: The name servers that have it on disk.
        missed: Name servers and brokers that did not answer, and why: they are told by brokers when they are back.
    """

    before: Switch
    after: Switch
    told: list[str]
    missed: dict[str, str]


class _Known(msgspec.Struct, frozen=True):
    """What all name servers know together.

    Attributes:
        wait_ms: How long to wait before they know it, as all of them were just started.
        oldest: The one that knows most.
    """

    switch: Switch
    units: dict[str, KnownUnit]
    servers: list[ServerSwitch]
    wait_ms: int
    oldest: str


class Units:
    """Operations on units."""

    def __init__(
        self, reach: Reach, now_ms: Callable[[], int], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._reach = reach.within(None)
        self._now_ms = now_ms
        self._sleep = sleep

    # Changing.

    async def open(self, opening: Opening, *, dry_run: bool = False) -> SwitchChange:
        """Let the consumers of all units read what *opening* says.

        Raises:
            NotFound: there is no such unit, topic or group.
            NotAllowed: a member of the group cannot be told apart; a name server knows nothing of units.
            SwitchRefused: it would change nothing.
        """
        known = await self._look()
        await self._require_sense(known, opening)
        return await self._change(known.switch, known.switch.open(opening, self._now_ms()), dry_run=dry_run)

    async def close(self, opening: Opening, *, dry_run: bool = False) -> SwitchChange:
        """End what *opening* says, and all that is in it.

        Raises:
            SwitchRefused: it would change nothing.
            NotAllowed: a name server knows nothing of units.
        """
        known = await self._look()
        return await self._change(known.switch, known.switch.close(opening, self._now_ms()), dry_run=dry_run)

    async def _change(self, before: Switch, after: Switch, *, dry_run: bool) -> SwitchChange:
        told: list[str] = []
        missed: dict[str, str] = {}
        if dry_run:
            return SwitchChange(before=before, after=after, told=told, missed=missed)
        body = encode_switch(after)

        async def tell(address: str) -> None:
            try:
                await self._reach.ask(address, RequestCode.SET_SWITCH, body=body)
            except (ConnectionLost, RequestTimeout) as error:
                missed[address] = str(error)
            else:
                told.append(address)

        await gather(self._reach.name_servers, tell)
        if not told:
            raise NameServerUnreachable(next(iter(missed.values()), "there is no name server"))
        brokers = await self._reach.all_masters()
        silent = await gather(brokers, lambda broker: self._tell(broker, body))
        missed |= {name: fault for name, fault in silent if fault is not None}
        return SwitchChange(before=before, after=after, told=sorted(told), missed=missed)

    async def _tell(self, broker: Broker, body: bytes) -> tuple[str, str | None]:
        """Tell a broker, so that it tells name servers that are away now. A Java broker has nothing to do with it."""
        try:
            await self._reach.ask(broker.address, RequestCode.SET_SWITCH, body=body)
        except BrokerRefused as refusal:
            is_strange = refusal.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            return broker.name, None if is_strange else str(refusal)
        except (ConnectionLost, RequestTimeout) as error:
            return broker.name, str(error)
        return broker.name, None

    async def _require_sense(self, known: _Known, opening: Opening) -> None:
        if len(known.units) < 2:
            names = ", ".join(known.units) or "none"
            raise NotAllowed(f"nothing would change: there is no other unit to read from ({names} is all there is)")
        if opening.unit != EVERY_UNIT and opening.unit not in known.units:
            raise _no_unit(opening.unit, known)
        if opening.topic and not await self._has_topic(known, opening):
            where = "anywhere" if opening.unit == EVERY_UNIT else f"in unit {opening.unit}"
            raise NotFound(f"nothing would change: there is no topic {opening.topic!r} {where}")
        if opening.group:
            await self._require_told_apart(opening.group)

    async def require(self, unit: str) -> None:
        """Do nothing when there is such a unit.

        Raises:
            NotFound: there is none; the text names the nearest.
        """
        try:
            known = await self._look()
        except NotAllowed:
            return  # A name server of before: which units there are nobody can tell.
        # One that was opened, and of which nothing is left, can still be closed.
        if known.units and unit not in known.units and unit not in {each.unit for each in known.switch.openings}:
            raise _no_unit(unit, known)

    async def _has_topic(self, known: _Known, opening: Opening) -> bool:
        units = list(known.units) if opening.unit == EVERY_UNIT else [opening.unit]
        if any(opening.topic in known.units[unit].topics for unit in units):
            return True
        if any(row.scope == GLOBAL for row in (await self._reach.find_reports(opening.topic)).values()):
            raise NotAllowed(
                f"nothing would change: {opening.topic} is global, and read and written in every unit, always"
            )
        for unit in units:
            answer = await self._reach.ask_name_server(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": unit})
            if opening.topic in body_of(answer, TopicList).topic_list:
                return True
        return False

    async def _require_told_apart(self, group: str) -> None:
        """See that every member of a group tells its group to name servers; all must see the same queues."""
        groups = Groups(self._reach)
        await groups.check_exists(group)
        for member in await groups.members(group):
            if member.language != OUR_LANGUAGE:
                raise NotAllowed(
                    f"{member.client_id} of group {group} is a client of another kind ({member.language}), which does"
                    " not tell name servers its group: it would see other queues than the rest. Open without --group"
                )

    # Looking.

    async def status(self) -> DisasterStatus:
        """Return what is open, who knows of it, and what is left to read.

        Raises:
            NotAllowed: a name server knows nothing of units.
        """
        known = await self._look()
        versions = {server.version for server in known.servers if server.fault is None}
        units = await gather(sorted(known.units), lambda name: self._unit(name, known))
        return DisasterStatus(
            version=known.switch.version,
            openings=list(known.switch.openings),
            name_servers=known.servers,
            is_equal=len(versions) == 1,
            units=units,
        )

    async def _unit(self, name: str, known: _Known) -> UnitStatus:
        openings = [each for each in known.switch.openings if each.unit in {EVERY_UNIT, name}]
        status = UnitStatus(
            name=name, brokers=sorted(known.units[name].brokers), openings=[str(each) for each in openings]
        )
        if not openings:
            return status
        topics = [topic for topic in known.units[name].topics if any(each.names(topic) for each in openings)]
        return msgspec.structs.replace(
            status,
            backlogs=await self._backlogs(name, openings) if status.brokers else [],
            unreadable=[
                each
                for found in await gather(topics, lambda topic: self._unreadable(name, topic, status))
                for each in found
            ],
        )

    async def _backlogs(self, unit: str, openings: Sequence[Opening]) -> list[GroupBacklog]:
        groups = Groups(self._reach.within(unit))
        names = [name for name in await groups.configs() if not name.startswith(SYSTEM_PREFIXES)]
        left = [_to_backlog(lag, openings) for lag in await gather(names, groups.lag)]
        return [each for each in left if each.lag or each.unknown]

    async def _unreadable(self, unit: str, topic: str, status: UnitStatus) -> list[Unreadable]:
        """Return the homes of a topic's queues that are on brokers which are gone."""
        rows = await self._reach.within(unit).find_reports(topic)
        merged: MergedTopic | None = merge({name: from_info(row) for name, row in rows.items()}) if rows else None
        gone: dict[str, set[int]] = {}
        for number, queue in {} if merged is None else merged.queues.items():
            for home in queue.readable:
                if home.broker not in status.brokers:
                    gone.setdefault(home.broker, set()).add(number)
        return [Unreadable(topic, broker, sorted(queues)) for broker, queues in sorted(gone.items())]

    async def _look(self) -> _Known:
        """Return what name servers know, once brokers have had the time to tell it."""
        known = await self._look_once()
        if known.wait_ms > 0:
            await self._sleep(known.wait_ms / 1000)
            known = await self._look_once()
        self._reach = self._reach.by_way_of(known.oldest)
        return known

    async def _look_once(self) -> _Known:
        servers = await gather(self._reach.name_servers, self._ask)
        ages = {
            server.address: SETTLED_MS if state.age_ms is None else state.age_ms
            for server, state in servers
            if state is not None
        }
        if not ages:
            raise NameServerUnreachable(next((server.fault or "" for server, _ in servers), "there is no name server"))
        newest = CLOSED
        units: dict[str, KnownUnit] = {}
        for state in (state for _, state in servers if state is not None):
            newest = state.switch if state.switch.is_newer(newest) else newest
            for name, unit in state.units.items():
                known = units.get(name, KnownUnit())
                units[name] = KnownUnit(_union(known.brokers, unit.brokers), _union(known.topics, unit.topics))
        if not units:
            await self._reach.cluster_info()  # A broker knows a switch, too: it is none to ask, and says so here.
        oldest = max(ages, key=ages.__getitem__)
        wait_ms = SETTLED_MS - ages[oldest]
        return _Known(newest, units, [server for server, _ in servers], wait_ms, oldest)

    async def _ask(self, address: str) -> tuple[ServerSwitch, UnitState | None]:
        try:
            answer = await self._reach.ask(address, RequestCode.GET_SWITCH)
        except (ConnectionLost, RequestTimeout) as error:
            return ServerSwitch(address=address, fault=str(error)), None
        except BrokerRefused as refusal:
            if refusal.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            raise NotAllowed(
                f"the name server at {address} knows nothing of units: its clients see everything. Replace it by a"
                " Holdfast name server"
            ) from refusal
        state = body_of(answer, UnitState)
        return ServerSwitch(address=address, version=state.switch.version), state


def _to_backlog(lag: GroupLag, openings: Sequence[Opening]) -> GroupBacklog:
    """Return what a group has still to read of what is open to it: the rest waits for the unit itself."""

    def is_open(topic: str) -> bool:
        return any(opening.serves(topic, lag.group) for opening in openings)

    return GroupBacklog(
        lag.group,
        sum(queue.lag for queue in (*lag.queues, *lag.retries) if is_open(queue.topic)),
        sum(is_open(queue.topic) for queue in lag.unknown),
    )


def _no_unit(name: str, known: _Known) -> NotFound:
    return NotFound(f"no unit {name!r}{nearest(name, known.units)}")


def _union(one: Sequence[str], other: Sequence[str]) -> list[str]:
    return sorted({*one, *other})
