"""Server-sent events: what changes, to every page that listens.

event: cluster
id: 17
data: {"brokers": ...}
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import Request
from starlette.responses import StreamingResponse

from holdfast.console.context import Context
from holdfast.console.poller import Poller, Snapshot
from holdfast.console.problems import BadParameter

QUIET_S: Final = 15.0
_RETRY: Final = b"retry: 1000\n\n"
_COMMENT: Final = b": nothing new\n\n"


def stream_events(context: Context, request: Request) -> StreamingResponse:
    """Return the stream of events for a page.

    Raises:
        BadParameter: there is a parameter besides `topic`, or it is empty.
        TooManyListeners: there are too many listeners, or too many topics are watched.
    """
    query = request.query_params.multi_items()
    if unknown := [name for name, _ in query if name != "topic"]:
        raise BadParameter(f"/events has no parameter {unknown[0]!r}; it has 'topic'")
    topics = frozenset(topic for _, topic in query)
    if "" in topics:
        raise BadParameter("parameter 'topic' is empty: name a topic, or omit it")
    context.poller.require_space(topics)
    return StreamingResponse(
        _events(context.poller, topics), media_type="text/event-stream", headers={"cache-control": "no-store"}
    )


async def _events(poller: Poller, topics: frozenset[str]) -> AsyncIterator[bytes]:
    with poller.listen(topics) as listener:
        yield _RETRY
        async for snapshots in poller.changes(listener, quiet_s=QUIET_S):
            yield b"".join(map(to_event, snapshots)) or _COMMENT


def to_event(snapshot: Snapshot) -> bytes:
    """Return a snapshot as an event. JSON on one line has no line break that could end the event."""
    kind = snapshot.name.partition("/")[0].encode()
    return b"event: %b\nid: %d\ndata: %b\n\n" % (kind, snapshot.version, snapshot.data)
