"""Route push status: which name servers push changed routes, to how many clients and how often."""

from __future__ import annotations

import msgspec

from holdfast.admin.cluster_access import ClusterAccess, gather
from holdfast.model.errors import HoldfastError
from holdfast.wire.cluster.push_state import (
    PUSH_KEY,
    PushState,
    ReportedLinkCapacity,
    ReportedReadings,
    decode_push_state,
)
from holdfast.wire.frames.codes import RequestCode


class RoutePushStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The route push status of one name server. The figures are None if it does not push, or did not answer.

    Attributes:
        pushes: Whether it pushes; if not, its clients poll, as with every Java name server.
        pace: `every second`, `every 10 s` or `paused`.
        reason: The readings that cause a reduced pace; empty at full pace.
        link_capacity: The capacity of which the network reading is a percentage.
        fault: Why it did not answer.
    """

    address: str
    pushes: bool = False
    broker_events: str | None = None
    watching_clients: int | None = None
    watched_topics: int | None = None
    pending_clients: int | None = None
    notices_sent: int | None = None
    pace: str | None = None
    reason: str | None = None
    readings: ReportedReadings | None = None
    link_capacity: ReportedLinkCapacity | None = None
    fault: str | None = None


async def find_route_push(access: ClusterAccess) -> list[RoutePushStatus]:
    """Return the route push status of every name server, including those that do not answer."""

    async def query(address: str) -> RoutePushStatus:
        try:
            settings = await access.invoke(address, RequestCode.GET_NAMESRV_CONFIG)
            if f"{PUSH_KEY}=".encode() not in settings.body:
                return RoutePushStatus(address=address)
            answer = await access.invoke(address, RequestCode.GET_PUSH_STATE)
            return _to_status(address, decode_push_state(answer.body))
        except HoldfastError as error:
            return RoutePushStatus(address=address, fault=str(error))

    return await gather(access.name_servers, query)


def _to_status(address: str, state: PushState) -> RoutePushStatus:
    return RoutePushStatus(
        address=address,
        pushes=True,
        broker_events=state.broker_events,
        watching_clients=state.watching_clients,
        watched_topics=state.watched_topics,
        pending_clients=state.pending_clients,
        notices_sent=state.notices_sent,
        pace=state.pace,
        reason=state.reason,
        readings=state.readings,
        link_capacity=state.link_capacity,
    )
