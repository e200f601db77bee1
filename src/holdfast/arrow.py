"""Read topics as Arrow: pulled bytes become columns, without a Python object per message.

    import pyarrow
    from holdfast import arrow

    for batch in arrow.read("127.0.0.1:9876", "orders", columns=["key", "body"]):
        print(batch.num_rows, batch["key"])

    table = pyarrow.Table.from_batches(arrow.read("127.0.0.1:9876", "orders"))     # everything in the topic now

The Spark source uses the same reader, which follows queues that move, but Spark is not required. Programs that use
asyncio call it in a thread. It requires pyarrow and numpy, which the extra `arrow` includes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Unpack

from holdfast.runtime.process.extras import describe_missing

try:
    import numpy as np  # noqa: F401 - used by imported modules; imported here to report that it is missing
    import pyarrow as pa
except ImportError as error:
    raise ImportError(describe_missing("holdfast.arrow", error, "arrow"), name=error.name) from None

from holdfast.bulk.cluster_connection import Unavailable
from holdfast.bulk.cluster_session import session_for
from holdfast.bulk.read_options import Bound, Range, ReadOptions
from holdfast.bulk.task_reader import DataLost, find_bounds, plan_ranges, read_ranges
from holdfast.client.access.credentials_options import CredentialsArguments, credentials_options
from holdfast.client.cluster.queue_rpc import Start
from holdfast.columns.message_columns import TYPES, schema_of
from holdfast.model.access.client_tls import ClientTls
from holdfast.model.errors import ConfigError

__all__ = ["COLUMNS", "DataLost", "Place", "Unavailable", "read", "schema_of"]

COLUMNS = tuple(TYPES)
"""All columns, in their usual order."""

Place = Start | Mapping[str, int]
"""Either end, a time, or offsets by queue: `{"0": 17, "1": 42}`; a queue of a normal topic is `"broker-a/0"`."""


def read(  # noqa: PLR0913 - one name for each option
    namesrv: str,
    topic: str,
    *,
    columns: Sequence[str] = COLUMNS,
    start: Place = "earliest",
    end: Place = "latest",
    tags: str = "*",
    fail_on_data_loss: bool = True,
    timeout_s: float = 600.0,
    unit: str | None = None,
    tls: ClientTls | None = None,
    **access: Unpack[CredentialsArguments],
) -> Iterator[pa.RecordBatch]:
    """Return the messages of *topic* between two bounds as record batches, queue by queue, each in order.

    Args:
        namesrv: Name servers: `host:port;host:port`.
        topic: The topic to read.
        columns: The columns, in the desired order. Other columns are not decoded.
        start: Where to begin. Offsets also select the queues to read.
        end: Where to stop, resolved now: messages that arrive later do not move it.
        tags: `a || b`: only messages with one of these tags, filtered at the broker.
        fail_on_data_loss: Fail if messages in the range are gone; otherwise continue without them.
        timeout_s: How long a broker may be unavailable.
        unit: The unit (a cluster) to read; other units are read while they are open to it. None for all.
        tls: Use TLS on every connection; None for plain connections.
        **access: Who the reader is, see `CredentialsArguments`. Without it, only clusters without access control can be
            read.

    Raises:
        ConfigError: the topic, a queue or a column does not exist.
        DataLost: messages in the range are gone.
        Unavailable: no name server answers, or a broker was unavailable for too long.
        AccessDenied: the reader may not read the topic, or could not log in.
    """
    unknown = [name for name in columns if name not in TYPES]
    if unknown:
        raise ConfigError(f"there is no column {unknown[0]!r}; the columns are {', '.join(COLUMNS)}")
    queues = start if isinstance(start, Mapping) else end if isinstance(end, Mapping) else None
    options = ReadOptions(
        namesrv=namesrv,
        topics=(topic,),
        assigned=None if queues is None else {topic: tuple(queues)},
        start=_bound(topic, start),
        end=_bound(topic, end),
        is_strict_time=False,
        fails_on_data_loss=fail_on_data_loss,
        tags=tags,
        patience_s=timeout_s,
        unit=unit,
        tls=tls,
        credentials=credentials_options(**access),
    )
    return read_ranges(options, tuple(columns), _plan(options))


def _plan(options: ReadOptions) -> tuple[Range, ...]:
    session = session_for(options)
    session.connection.require_name_server()
    _, starts, ends = find_bounds(session, options)
    return tuple(plan_ranges(session, options, starts, ends))


def _bound(topic: str, place: Place) -> Bound:
    if isinstance(place, Mapping):
        return Bound("offsets", {topic: dict(place)})
    if isinstance(place, datetime):
        return Bound("time", time_ms=round(place.timestamp() * 1000))
    return Bound(place)
