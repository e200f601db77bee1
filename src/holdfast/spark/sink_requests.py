"""The rows of one queue as requests, from any row on, in either form.

    apart     every row becomes a record                     at most 512 KiB and 1 000 rows
    whole     the request becomes one record of all rows     at most 1 MiB and 4 096 rows, whose keys fit outside

Who wants every row once stamps them: in a batch that is kept whole its own stamp says it all, else each row has one.

Pure: knows neither brokers nor Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from holdfast.client.messages.packing import Outgoing
from holdfast.client.produce.sender import Parcel
from holdfast.model.errors import LocalProtocolError
from holdfast.model.queue import MessageQueue
from holdfast.spark.sink_items import count_fitting, count_keyed, encode_messages, wrap_messages
from holdfast.spark.sink_rows import Messages
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.records.compression import Codec
from holdfast.wire.requests.sink import SINK, SinkStamp, record_texts

REQUEST_BYTES_MAX: Final = 512 * 1024
REQUEST_ROWS_MAX: Final = 1000
# What a reader gets by one pull, and hands on as one Arrow batch.
WHOLE_BYTES_MAX: Final = 1024 * 1024
WHOLE_ROWS_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class WriteName:
    """Which rows these are, for those who want each once."""

    query: str
    batch: int
    partition: int
    accepts_unknown: bool = False


@dataclass(frozen=True, slots=True)
class Stamps:
    """What makes rows known.

    Attributes:
        name: Which rows they are.
        checksums: Before the first of all rows, and behind each.
    """

    name: WriteName
    checksums: list[int]

    def of_request(self, start: int, end: int) -> str:
        """Return what the properties of a request with some of the rows say."""
        stamp = SinkStamp(
            query=self.name.query,
            batch=self.name.batch,
            partition=self.name.partition,
            first=start,
            count=end - start,
            before=self.checksums[start],
            after=self.checksums[end],
            is_last=end + 1 == len(self.checksums),
            is_anew=self.name.accepts_unknown,
        )
        return f"{SINK}\x01{stamp.to_text()}\x02"

    def of_rows(self, start: int, end: int) -> list[bytes]:
        """Return what the properties of each of some rows say."""
        checksums, is_last = self.checksums[start + 1 : end + 1], end + 1 == len(self.checksums)
        name = self.name
        texts = record_texts(name.query, name.batch, name.partition, start, checksums, is_last=is_last)
        return [f"{SINK}\x01{text}\x02".encode() for text in texts]


class Request(msgspec.Struct, frozen=True):
    """Some rows on their way.

    Attributes:
        end: The row behind the last of them.
        is_whole: The broker is to keep them as one record.
    """

    outgoing: Outgoing
    end: int
    is_whole: bool

    def to_parcel(self, queue: MessageQueue) -> Parcel:
        """Return it with the way it goes."""
        code = RequestCode.SEND_BATCH_MESSAGE
        return Parcel(queue.topic, self.outgoing, queue=queue, code=code, is_whole=self.is_whole)


@dataclass(frozen=True, slots=True)
class RowRequests:
    """Makes requests of the rows of one queue.

    Attributes:
        rows: The rows.
        codec: How to compress them in batches that are kept whole; None for not at all.
        stamps: What makes them known; None if they may be there twice.
    """

    rows: Messages
    codec: Codec | None = None
    stamps: Stamps | None = None

    def apart(self, start: int) -> Request:
        """Return a request with rows from *start* on, in the form that every broker takes."""
        end = start + count_fitting(self.rows[start : start + REQUEST_ROWS_MAX], REQUEST_BYTES_MAX)
        stamps = None if self.stamps is None else self.stamps.of_rows(start, end)
        body = encode_messages(self.rows[start:end], stamps)
        return Request(Outgoing("", self._stamp(start, end), body, 0, 0), end, is_whole=False)

    def whole(self, start: int, batch_id: str) -> Request | None:
        """Return one for brokers that keep batches whole; None if there is none."""
        rows = self.rows[start : start + WHOLE_ROWS_MAX]
        rows = rows[: count_fitting(rows, WHOLE_BYTES_MAX)]
        rows = rows[: count_keyed(rows)]
        try:
            wrapped = wrap_messages(rows, batch_id, self.codec)
        except LocalProtocolError:
            return None
        end = start + len(rows)
        properties = wrapped.properties + self._stamp(start, end)
        return Request(Outgoing(batch_id, properties, wrapped.body, wrapped.sys_flag, 0), end, is_whole=True)

    def _stamp(self, start: int, end: int) -> str:
        return "" if self.stamps is None else self.stamps.of_request(start, end)
