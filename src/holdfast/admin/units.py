"""Open and close units (`holdfast dr`), and report the backlog of an open unit.

    read all name servers ─> would it change anything? ─> send to all name servers ─> send to all brokers
                                                          brokers inform a name server that was away when it returns

Name servers do not talk to each other; brokers carry the newest switch from one to the other. The backlog and the
unreadable queues come from the brokers, and from the name servers' memory of dead brokers. Of several name servers, the
one that has run longest is preferred: brokers may not have registered yet with one that just started. If all of them
just started, wait for the brokers.
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
"""How old a name server must be before its list of brokers is trusted: brokers redial a lost one every second."""


class ServerSwitch(msgspec.Struct, frozen=True, kw_only=True):
    """The switch version of one name server.

    Attributes:
        fault: Why it did not answer; None when it did.
    """

    address: str
    version: int | None = None
    fault: str | None = None


class Unreadable(msgspec.Struct, frozen=True):
    """Queues of a static topic that cannot be read to their end: a broker with one of their segments is gone."""

    topic: str
    broker: str
    queues: list[int]


class GroupBacklog(msgspec.Struct, frozen=True):
    """The backlog of a group in a unit.

    Attributes:
        lag: How many countable messages are left.
        unknown: How many logical queues have an unknown lag because their leader is down.
    """

    group: str
    lag: int
    unknown: int


class UnitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One unit.

    Attributes:
        openings: Its openings in words; empty if it is closed.
        backlogs: The groups with messages left to read; only for an open unit.
        unreadable: The queues that cannot be read to their end; only for an open unit.
    """

    name: str
    brokers: list[str]
    openings: list[str] = []
    backlogs: list[GroupBacklog] = []
    unreadable: list[Unreadable] = []


class DisasterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The openings, the name servers that have them, and the backlog of each unit.

    Attributes:
        is_equal: Whether every name server that answers has the same version.
    """

    version: int
    openings: list[Opening]
    name_servers: list[ServerSwitch]
    is_equal: bool
    units: list[UnitStatus]


class SwitchChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the switch.

    Attributes:
        told: The name servers that have persisted it.
        missed: Name servers and brokers that did not answer, and why. Brokers inform them when they return.
    """

    before: Switch
    after: Switch
    told: list[str]
    missed: dict[str, str]


class _Known(msgspec.Struct, frozen=True):
    """The combined knowledge of all name servers.

    Attributes:
        wait_ms: How long to wait until it is complete; above 0 if all name servers just started.
        oldest: The name server that has run longest, and so knows the most.
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
        """Let the consumers of all units read the topics of *opening*.

        Raises:
            NotFound: there is no such unit, topic or group.
            NotAllowed: a member of the group does not send its group to name servers, or a name server does not
                support units, or there is no other unit.
            SwitchRefused: it would change nothing.
        """
        known = await self._read_known()
        await self._require_sense(known, opening)
        return await self._change(known.switch, known.switch.open(opening, self._now_ms()), dry_run=dry_run)

    async def close(self, opening: Opening, *, dry_run: bool = False) -> SwitchChange:
        """Close *opening*, and all narrower openings that it covers.

        Raises:
            SwitchRefused: it would change nothing.
            NotAllowed: a name server does not support units.
        """
        known = await self._read_known()
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
        """Send the switch to a broker, which passes it to name servers that are away now. Java brokers ignore it.

        Return the broker's name and why it failed, or None.
        """
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
            raise NotAllowed(f"nothing would change: there is no other unit to read from (known: {names})")
        if opening.unit != EVERY_UNIT and opening.unit not in known.units:
            raise _no_unit(opening.unit, known)
        if opening.topic and not await self._has_topic(known, opening):
            where = "anywhere" if opening.unit == EVERY_UNIT else f"in unit {opening.unit}"
            raise NotFound(f"nothing would change: there is no topic {opening.topic!r} {where}")
        if opening.group:
            await self._require_told_apart(opening.group)

    async def require(self, unit: str) -> None:
        """Check that *unit* exists.

        Raises:
            NotFound: it does not exist; the text suggests the closest name.
        """
        try:
            known = await self._read_known()
        except NotAllowed:
            return  # An older name server cannot list units.
        # A unit that was opened can still be closed when none of its brokers is left.
        if known.units and unit not in known.units and unit not in {each.unit for each in known.switch.openings}:
            raise _no_unit(unit, known)

    async def _has_topic(self, known: _Known, opening: Opening) -> bool:
        units = list(known.units) if opening.unit == EVERY_UNIT else [opening.unit]
        if any(opening.topic in known.units[unit].topics for unit in units):
            return True
        if any(row.scope == GLOBAL for row in (await self._reach.find_reports(opening.topic)).values()):
            raise NotAllowed(
                f"nothing would change: {opening.topic} is global, so every unit always reads and writes it"
            )
        for unit in units:
            answer = await self._reach.ask_name_server(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": unit})
            if opening.topic in body_of(answer, TopicList).topic_list:
                return True
        return False

    async def _require_told_apart(self, group: str) -> None:
        """Check that every member of a group sends its group to name servers: all members must see the same queues."""
        groups = Groups(self._reach)
        await groups.check_exists(group)
        for member in await groups.members(group):
            if member.language != OUR_LANGUAGE:
                raise NotAllowed(
                    f"{member.client_id} of group {group} is not a Holdfast client ({member.language}), so name servers"
                    " do not know its group: it would see other queues than the other members. Open without --group"
                )

    # Reading.

    async def status(self) -> DisasterStatus:
        """Return the openings, the name servers that have them, and the backlog of each unit.

        Raises:
            NotAllowed: a name server does not support units.
        """
        known = await self._read_known()
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
        """Return the brokers that are gone and still have readable segments of a topic, with the affected queues."""
        rows = await self._reach.within(unit).find_reports(topic)
        merged: MergedTopic | None = merge({name: from_info(row) for name, row in rows.items()}) if rows else None
        gone: dict[str, set[int]] = {}
        for number, queue in {} if merged is None else merged.queues.items():
            for home in queue.readable:
                if home.broker not in status.brokers:
                    gone.setdefault(home.broker, set()).add(number)
        return [Unreadable(topic, broker, sorted(queues)) for broker, queues in sorted(gone.items())]

    async def _read_known(self) -> _Known:
        """Return the knowledge of the name servers, once brokers have had the time to register with one of them."""
        known = await self._read_known_once()
        if known.wait_ms > 0:
            await self._sleep(known.wait_ms / 1000)
            known = await self._read_known_once()
        self._reach = self._reach.by_way_of(known.oldest)
        return known

    async def _read_known_once(self) -> _Known:
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
            # Brokers answer GET_SWITCH, too. If the address is a broker's, this request fails and says so.
            await self._reach.cluster_info()
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
                f"the name server at {address} does not support units: its clients see all of them. Replace it with a"
                " Holdfast name server"
            ) from refusal
        state = body_of(answer, UnitState)
        return ServerSwitch(address=address, version=state.switch.version), state


def _to_backlog(lag: GroupLag, openings: Sequence[Opening]) -> GroupBacklog:
    """Return a group's backlog in the topics that are open to it: the other messages wait for their own unit."""

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
