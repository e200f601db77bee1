"""Encodes the rows of one queue as send requests, from any row on, in either of two forms.

    separate records  every row becomes a record              at most 512 KiB and 1 000 rows
    inner batch       the request becomes one record of all   at most 1 MiB and 4 096 rows; keys must fit its properties

Exactly-once writes stamp the rows: a batch that is stored whole has one stamp, otherwise each row has its own.

Pure: depends on neither brokers nor Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from holdfast.client.messages.packing import Outgoing
from holdfast.client.produce.sender import Parcel
from holdfast.model.errors import LocalProtocolError
from holdfast.model.queue import MessageQueue
from holdfast.spark.sink_items import count_fitting, count_fitting_keys, encode_messages, wrap_messages
from holdfast.spark.sink_rows import MessageSelection
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.records.compression import Codec
from holdfast.wire.requests.sink import SINK, SinkStamp, record_texts

REQUEST_BYTES_MAX: Final = 512 * 1024
REQUEST_ROWS_MAX: Final = 1000
# The limits of one pull, which a reader returns as one Arrow batch.
INNER_BATCH_BYTES_MAX: Final = 1024 * 1024
INNER_BATCH_ROWS_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class WriteName:
    """Identifies the rows of one task for exactly-once delivery."""

    query: str
    batch: int
    partition: int
    accepts_unknown: bool = False


@dataclass(frozen=True, slots=True)
class Stamps:
    """Stamps that identify rows for exactly-once delivery.

    Attributes:
        name: Identifies the rows.
        checksums: The running checksum before the first of all rows, and after each.
    """

    name: WriteName
    checksums: list[int]

    def request_stamp(self, start: int, end: int) -> str:
        """Return the stamp of a request with the rows [start, end), as a property."""
        stamp = SinkStamp(
            query=self.name.query,
            batch=self.name.batch,
            partition=self.name.partition,
            first=start,
            count=end - start,
            checksum_before=self.checksums[start],
            checksum_after=self.checksums[end],
            is_last=end + 1 == len(self.checksums),
            accepts_unknown=self.name.accepts_unknown,
        )
        return f"{SINK}\x01{stamp.to_text()}\x02"

    def row_stamps(self, start: int, end: int) -> list[bytes]:
        """Return the stamp of each of the rows [start, end), as a property."""
        checksums, is_last = self.checksums[start + 1 : end + 1], end + 1 == len(self.checksums)
        name = self.name
        texts = record_texts(name.query, name.batch, name.partition, start, checksums, is_last=is_last)
        return [f"{SINK}\x01{text}\x02".encode() for text in texts]


class EncodedRequest(msgspec.Struct, frozen=True):
    """A send request with some rows.

    Attributes:
        end: The row after its last row.
        is_inner_batch: The broker shall store the rows as one record.
    """

    outgoing: Outgoing
    end: int
    is_inner_batch: bool

    def to_parcel(self, queue: MessageQueue) -> Parcel:
        """Return the request addressed to a queue."""
        code = RequestCode.SEND_BATCH_MESSAGE
        return Parcel(queue.topic, self.outgoing, queue=queue, code=code, is_inner_batch=self.is_inner_batch)


@dataclass(frozen=True, slots=True)
class RowRequests:
    """Encodes the rows of one queue as requests.

    Attributes:
        rows: The rows.
        codec: Compresses batches that are stored whole; None for no compression.
        stamps: The stamps for exactly-once delivery; None for at least once.
    """

    rows: MessageSelection
    codec: Codec | None = None
    stamps: Stamps | None = None

    def to_separate_records(self, start: int) -> EncodedRequest:
        """Return a request with rows from *start* on, in the form that every broker accepts."""
        end = start + count_fitting(self.rows[start : start + REQUEST_ROWS_MAX], REQUEST_BYTES_MAX)
        stamps = None if self.stamps is None else self.stamps.row_stamps(start, end)
        body = encode_messages(self.rows[start:end], stamps)
        return EncodedRequest(Outgoing("", self._stamp(start, end), body, 0, 0), end, is_inner_batch=False)

    def to_inner_batch(self, start: int, batch_id: str) -> EncodedRequest | None:
        """Return a request with rows from *start* on, to be stored whole; None if the rows cannot be encoded so."""
        rows = self.rows[start : start + INNER_BATCH_ROWS_MAX]
        rows = rows[: count_fitting(rows, INNER_BATCH_BYTES_MAX)]
        rows = rows[: count_fitting_keys(rows)]
        try:
            wrapped = wrap_messages(rows, batch_id, self.codec)
        except LocalProtocolError:
            return None
        end = start + len(rows)
        properties = wrapped.properties + self._stamp(start, end)
        return EncodedRequest(
            Outgoing(batch_id, properties, wrapped.body, wrapped.sys_flag, 0), end, is_inner_batch=True
        )

    def _stamp(self, start: int, end: int) -> str:
        return "" if self.stamps is None else self.stamps.request_stamp(start, end)
