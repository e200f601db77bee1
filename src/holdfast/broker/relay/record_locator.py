"""Finds the record that a client names by its position in some broker's log (33, 36, 37).

    position, id ─> the record here ─┬─ has that id ─> found
                                     └─ none, or other id ─> query (33) the broker whose address is in the id,
                                                             then all others ─> found there, or nowhere

A client of a static topic may not know which broker stored a message: the queue moved, or one broker relays everything
for it. A position is valid in one log only; other logs may have a different record there. So the id decides: the unique
key of the sender, or host and position. A message of a batch has only its unique key.

A client that names no id means a record that it received through this broker (`delivered_ranges.py`), and no other.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.broker.consume.delivered_ranges import DeliveredRanges
from holdfast.broker.flow.awaitables import PeerCall
from holdfast.broker.mapping.cluster_view import ClusterView
from holdfast.broker.messages.batch_cache import BatchCache, UnpackReason
from holdfast.broker.messages.record_lookup import FindQueue, properties_of, read_named_record
from holdfast.machine.events import ChannelId
from holdfast.model.errors import PeerFailed, RemoteProtocolError
from holdfast.model.property_names import UNIQUE_KEY
from holdfast.store.log.record_reader import decode_at
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.records.inner_batch import BatchSupport, is_inner_batch
from holdfast.wire.records.message_id import format_message_id, parse_message_id
from holdfast.wire.records.record import StoredRecord
from holdfast.wire.requests.offsets import ViewMessageFields

_QUERY_TIMEOUT_MS: Final = 2_000  # A client that returns a message waits five seconds, and then sends a new one.


class LocatedRecord(msgspec.Struct, frozen=True):
    """A record, and the broker that has it.

    Attributes:
        record: The record; for a message of a batch, its single record.
        address: The address of the broker that has the record; None for this broker.
        is_in_batch: The message is one of many in a batch.
    """

    record: StoredRecord
    address: str | None = None
    is_in_batch: bool = False

    @property
    def message_id(self) -> str:
        """The id that identifies this message unambiguously."""
        unique_key = properties_of(self.record).get(UNIQUE_KEY) if self.is_in_batch else None
        return unique_key or format_message_id(self.record.store_host, self.record.position)


class RecordLocator:
    """Finds records in the logs of all brokers."""

    def __init__(
        self, view: ClusterView, batch_cache: BatchCache, delivered_ranges: DeliveredRanges, find_queue: FindQueue
    ) -> None:
        self._find_queue = find_queue
        self._view = view
        self._batch_cache = batch_cache
        self._delivered_ranges = delivered_ranges

    async def find(self, position: int, message_id: str, silent: set[str] | None = None) -> LocatedRecord | None:
        """Return the record with *message_id* at *position* in any broker's log, or None if no broker returns it.

        Adds to *silent* the names of brokers that did not answer and may have the record.
        """
        record = await read_named_record(position, self._find_queue)
        found = None if record is None else self._match(record, message_id)
        return found or await self._find_elsewhere(position, message_id, set() if silent is None else silent)

    async def find_delivered(self, channel: ChannelId, position: int, group: str | None = None) -> list[LocatedRecord]:
        """Return every record at *position* of any log that a client may have received through this broker.

        Raises:
            PeerFailed: A broker that may have one does not answer.
        """
        found: list[LocatedRecord] = []
        for topic, message_id in self._delivered_ranges.find(channel, position, group):
            silent: set[str] = set()
            located = await self.find(position, message_id, silent)
            if located is None and silent:
                raise PeerFailed(f"position {position} may be one of {', '.join(sorted(silent))}: no answer from there")
            if located is not None and located.record.topic == topic:
                found.append(located)
        return found

    def _match(self, record: StoredRecord, message_id: str, address: str | None = None) -> LocatedRecord | None:
        """Return *record*, or the message in it, if it has *message_id*; else None."""
        if is_inner_batch(record.sys_flag):
            item = self.find_in_batch(record, message_id, is_own=address is None)
            return None if item is None else LocatedRecord(item, address, is_in_batch=True)
        return LocatedRecord(record, address) if has_message_id(record, message_id) else None

    def find_in_batch(self, record: StoredRecord, message_id: str, *, is_own: bool = True) -> StoredRecord | None:
        """Return the message with *message_id* in a batch, as if it had been sent alone, or None."""
        batch = (self._batch_cache.unpack_cached if is_own else self._batch_cache.unpack)(record, UnpackReason.RETRY)
        index = None if batch is None else batch.find_id(message_id)
        return None if batch is None or index is None else batch.record(index)

    async def _find_elsewhere(self, position: int, message_id: str, silent: set[str]) -> LocatedRecord | None:
        queried: set[str] = set()
        unreachable: set[str] = set()
        likely_address = _address_in(message_id)
        for is_refreshed in (False, True):
            if is_refreshed:  # A broker may be new.
                await self._view.refresh()
            # The id comes from an untrusted client, so only query known brokers, not the address in the id.
            brokers = sorted(self._view.brokers(), key=lambda broker: self._view.address(broker) != likely_address)
            for broker in brokers:
                if broker in queried:
                    continue
                queried.add(broker)
                try:
                    found = await self._query_broker(broker, position, message_id)
                except PeerFailed:
                    unreachable.add(broker)
                    continue
                if found is not None:
                    return found
        # If the broker in the id answered, the record is gone. Otherwise any silent broker may have had that address.
        if likely_address not in {self._view.address(broker) for broker in queried - unreachable}:
            silent |= unreachable
        return None

    async def _query_broker(self, broker: str, position: int, message_id: str) -> LocatedRecord | None:
        """Return the record of another broker, or None.

        Raises:
            PeerFailed: The broker does not answer.
        """
        fields = to_fields(ViewMessageFields(offset=position, batch_support=BatchSupport.REQUESTED.value))
        command = Command(code=RequestCode.VIEW_MESSAGE_BY_ID, fields=fields)
        address = await self._view.find_address(broker)
        answer = await PeerCall(address, command, _QUERY_TIMEOUT_MS)
        record = decode_at(answer.body, position) if answer.code == ResponseCode.SUCCESS else None
        return None if record is None else self._match(record, message_id, address)


def has_message_id(record: StoredRecord, *message_ids: str | None) -> bool:
    """Return whether one of *message_ids* is an id of *record*."""
    own = {properties_of(record).get(UNIQUE_KEY), format_message_id(record.store_host, record.position)}
    return any(message_id and message_id in own for message_id in message_ids)


def _address_in(message_id: str) -> str | None:
    try:
        return parse_message_id(message_id).address
    except RemoteProtocolError:
        return None
