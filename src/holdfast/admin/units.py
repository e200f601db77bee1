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

from holdfast.admin.cluster_access import (
    Broker,
    ClusterAccess,
    NameServerUnreachable,
    NotAllowed,
    NotFound,
    body_of,
    gather,
)
from holdfast.admin.groups import SYSTEM_PREFIXES, GroupLag, Groups
from holdfast.model.dr_switch import CLOSED, EVERY_UNIT, DrSwitch, UnitOpening
from holdfast.model.errors import BrokerRefused, ConnectionLost, RequestTimeout
from holdfast.model.mapping import MergedTopic, merge
from holdfast.model.queue import LogicalQueueId
from holdfast.model.scope import GLOBAL
from holdfast.model.spelling_hint import hint_suffix
from holdfast.wire.cluster.mapping import from_info
from holdfast.wire.cluster.route import TopicList
from holdfast.wire.cluster.units import KnownUnit, UnitState, encode_switch
from holdfast.wire.frames.codes import OUR_LANGUAGE, RequestCode, ResponseCode

TRUSTED_AGE_MS: Final = 3_000
"""How old a name server must be before its list of brokers is trusted: brokers redial a lost one every second."""


class ServerSwitch(msgspec.Struct, frozen=True, kw_only=True):
    """The switch version of one name server.

    Attributes:
        fault: Why it did not answer; None when it did.
    """

    address: str
    version: int | None = None
    fault: str | None = None


class UnreadableQueues(msgspec.Struct, frozen=True):
    """Queues of a static topic that cannot be read to their end: a broker with one of their segments is gone."""

    topic: str
    broker: str
    queues: list[LogicalQueueId]


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
    unreadable: list[UnreadableQueues] = []


class DisasterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The openings, the name servers that have them, and the backlog of each unit.

    Attributes:
        is_equal: Whether every name server that answers has the same version.
    """

    version: int
    openings: list[UnitOpening]
    name_servers: list[ServerSwitch]
    is_equal: bool
    units: list[UnitStatus]


class SwitchChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the switch.

    Attributes:
        told: The name servers that have persisted it.
        missed: Name servers and brokers that did not answer, and why. Brokers inform them when they return.
    """

    before: DrSwitch
    after: DrSwitch
    told: list[str]
    missed: dict[str, str]


class _SwitchState(msgspec.Struct, frozen=True):
    """The combined knowledge of all name servers.

    Attributes:
        wait_ms: How long to wait until it is complete; above 0 if all name servers just started.
        oldest: The name server that has run longest, and so knows the most.
    """

    switch: DrSwitch
    units: dict[str, KnownUnit]
    servers: list[ServerSwitch]
    wait_ms: int
    oldest: str


class Units:
    """Operations on units."""

    def __init__(
        self,
        access: ClusterAccess,
        now_ms: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._access = access.for_unit(None)
        self._now_ms = now_ms
        self._sleep = sleep

    # Changing.

    async def open(self, opening: UnitOpening, *, dry_run: bool = False) -> SwitchChange:
        """Let the consumers of all units read the topics of *opening*.

        Raises:
            NotFound: there is no such unit, topic or group.
            NotAllowed: a member of the group does not send its group to name servers, or a name server does not
                support units, or there is no other unit.
            SwitchRefused: it would change nothing.
        """
        state = await self._read_state()
        await self._require_effect(state, opening)
        return await self._change(state.switch, state.switch.open(opening, self._now_ms()), dry_run=dry_run)

    async def close(self, opening: UnitOpening, *, dry_run: bool = False) -> SwitchChange:
        """Close *opening*, and all narrower openings that it covers.

        Raises:
            SwitchRefused: it would change nothing.
            NotAllowed: a name server does not support units.
        """
        state = await self._read_state()
        return await self._change(state.switch, state.switch.close(opening, self._now_ms()), dry_run=dry_run)

    async def _change(self, before: DrSwitch, after: DrSwitch, *, dry_run: bool) -> SwitchChange:
        notified: list[str] = []
        missed: dict[str, str] = {}
        if dry_run:
            return SwitchChange(before=before, after=after, told=notified, missed=missed)
        body = encode_switch(after)

        async def notify(address: str) -> None:
            try:
                await self._access.invoke(address, RequestCode.SET_DR_SWITCH, body=body)
            except (ConnectionLost, RequestTimeout) as error:
                missed[address] = str(error)
            else:
                notified.append(address)

        await gather(self._access.name_servers, notify)
        if not notified:
            raise NameServerUnreachable(next(iter(missed.values()), "there is no name server"))
        brokers = await self._access.all_masters()
        silent = await gather(brokers, lambda broker: self._notify_broker(broker, body))
        missed |= {name: fault for name, fault in silent if fault is not None}
        return SwitchChange(before=before, after=after, told=sorted(notified), missed=missed)

    async def _notify_broker(self, broker: Broker, body: bytes) -> tuple[str, str | None]:
        """Send the switch to a broker, which passes it to name servers that are away now. Java brokers ignore it.

        Return the broker's name and why it failed, or None.
        """
        try:
            await self._access.invoke(broker.address, RequestCode.SET_DR_SWITCH, body=body)
        except BrokerRefused as refusal:
            is_unsupported = refusal.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            return broker.name, None if is_unsupported else str(refusal)
        except (ConnectionLost, RequestTimeout) as error:
            return broker.name, str(error)
        return broker.name, None

    async def _require_effect(self, state: _SwitchState, opening: UnitOpening) -> None:
        if len(state.units) < 2:
            names = ", ".join(state.units) or "none"
            raise NotAllowed(f"nothing would change: there is no other unit to read from (known: {names})")
        if opening.unit != EVERY_UNIT and opening.unit not in state.units:
            raise _unit_not_found(opening.unit, state)
        if opening.topic and not await self._has_topic(state, opening):
            where = "anywhere" if opening.unit == EVERY_UNIT else f"in unit {opening.unit}"
            raise NotFound(f"nothing would change: there is no topic {opening.topic!r} {where}")
        if opening.group:
            await self._require_identified_members(opening.group)

    async def require_unit(self, unit: str) -> None:
        """Check that *unit* exists.

        Raises:
            NotFound: it does not exist; the text suggests the closest name.
        """
        try:
            state = await self._read_state()
        except NotAllowed:
            return  # An older name server cannot list units.
        # A unit that was opened can still be closed when none of its brokers is left.
        if state.units and unit not in state.units and unit not in {each.unit for each in state.switch.openings}:
            raise _unit_not_found(unit, state)

    async def _has_topic(self, state: _SwitchState, opening: UnitOpening) -> bool:
        units = list(state.units) if opening.unit == EVERY_UNIT else [opening.unit]
        if any(opening.topic in state.units[unit].topics for unit in units):
            return True
        if any(report.scope == GLOBAL for report in (await self._access.find_reports(opening.topic)).values()):
            raise NotAllowed(
                f"nothing would change: {opening.topic} is global, so every unit always reads and writes it"
            )
        for unit in units:
            answer = await self._access.invoke_name_server(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": unit})
            if opening.topic in body_of(answer, TopicList).topic_list:
                return True
        return False

    async def _require_identified_members(self, group: str) -> None:
        """Check that every member of a group sends its group to name servers: all members must see the same queues."""
        groups = Groups(self._access)
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
        state = await self._read_state()
        versions = {server.version for server in state.servers if server.fault is None}
        units = await gather(sorted(state.units), lambda name: self._unit_status(name, state))
        return DisasterStatus(
            version=state.switch.version,
            openings=list(state.switch.openings),
            name_servers=state.servers,
            is_equal=len(versions) == 1,
            units=units,
        )

    async def _unit_status(self, name: str, state: _SwitchState) -> UnitStatus:
        openings = [each for each in state.switch.openings if each.unit in {EVERY_UNIT, name}]
        status = UnitStatus(
            name=name, brokers=sorted(state.units[name].brokers), openings=[str(each) for each in openings]
        )
        if not openings:
            return status
        topics = [topic for topic in state.units[name].topics if any(each.opens_topic(topic) for each in openings)]
        return msgspec.structs.replace(
            status,
            backlogs=await self._find_backlogs(name, openings) if status.brokers else [],
            unreadable=[
                each
                for found in await gather(topics, lambda topic: self._find_unreadable(name, topic, status))
                for each in found
            ],
        )

    async def _find_backlogs(self, unit: str, openings: Sequence[UnitOpening]) -> list[GroupBacklog]:
        groups = Groups(self._access.for_unit(unit))
        names = [name for name in await groups.configs() if not name.startswith(SYSTEM_PREFIXES)]
        backlogs = [_to_backlog(lag, openings) for lag in await gather(names, groups.lag)]
        return [backlog for backlog in backlogs if backlog.lag or backlog.unknown]

    async def _find_unreadable(self, unit: str, topic: str, status: UnitStatus) -> list[UnreadableQueues]:
        """Return the brokers that are gone and still have readable segments of a topic, with the affected queues."""
        reports = await self._access.for_unit(unit).find_reports(topic)
        merged: MergedTopic | None = (
            merge({name: from_info(report) for name, report in reports.items()}) if reports else None
        )
        missing_brokers: dict[str, set[LogicalQueueId]] = {}
        for number, queue in {} if merged is None else merged.queues.items():
            for segment in queue.readable:
                if segment.broker not in status.brokers:
                    missing_brokers.setdefault(segment.broker, set()).add(number)
        return [UnreadableQueues(topic, broker, sorted(queues)) for broker, queues in sorted(missing_brokers.items())]

    async def _read_state(self) -> _SwitchState:
        """Return the knowledge of the name servers, once brokers have had the time to register with one of them."""
        state = await self._read_state_once()
        if state.wait_ms > 0:
            await self._sleep(state.wait_ms / 1000)
            state = await self._read_state_once()
        self._access = self._access.preferring(state.oldest)
        return state

    async def _read_state_once(self) -> _SwitchState:
        servers = await gather(self._access.name_servers, self._query)
        ages = {
            server.address: TRUSTED_AGE_MS if state.age_ms is None else state.age_ms
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
            # Brokers answer GET_DR_SWITCH, too. If the address is a broker's, this request fails and says so.
            await self._access.cluster_info()
        oldest = max(ages, key=ages.__getitem__)
        wait_ms = TRUSTED_AGE_MS - ages[oldest]
        return _SwitchState(newest, units, [server for server, _ in servers], wait_ms, oldest)

    async def _query(self, address: str) -> tuple[ServerSwitch, UnitState | None]:
        try:
            answer = await self._access.invoke(address, RequestCode.GET_DR_SWITCH)
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


def _to_backlog(lag: GroupLag, openings: Sequence[UnitOpening]) -> GroupBacklog:
    """Return a group's backlog in the topics that are open to it: the other messages wait for their own unit."""

    def is_open(topic: str) -> bool:
        return any(opening.opens_for(topic, lag.group) for opening in openings)

    return GroupBacklog(
        lag.group,
        sum(queue.lag for queue in (*lag.queues, *lag.retries) if is_open(queue.topic)),
        sum(is_open(queue.topic) for queue in lag.unknown),
    )


def _unit_not_found(name: str, state: _SwitchState) -> NotFound:
    return NotFound(f"no unit {name!r}{hint_suffix(name, state.units)}")


def _union(one: Sequence[str], other: Sequence[str]) -> list[str]:
    return sorted({*one, *other})
