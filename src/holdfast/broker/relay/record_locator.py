"""Where a record is that a client names by its position in some broker's log (33, 36, 37).

    position, id ─> the record here ─┬─ has that id ─> it is this one
                                     └─ none, or another ─> asked for (33): at the broker whose address is in the id,
                                                            then at all others ─> there, or nowhere

A client of a static topic may not know which broker stored a message: the queue moved, or one broker passes everything
on for it. A position means something in one log only, and in others there may be another record at it. So it is the id
that decides: the sender's unique key, or host and position. A message of a batch has only the former for itself.

Who tells no id means what it was handed by way of this broker (`handed_out.py`), and nothing else.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.broker.consume.delivered_ranges import HandedOut
from holdfast.broker.flow.awaitables import PeerCall, Procedure
from holdfast.broker.mapping.cluster_view import ClusterView
from holdfast.broker.messages.batch_cache import OpenedBatches, Reason
from holdfast.broker.messages.record_lookup import properties_of, read_record
from holdfast.machine.events import ChannelId
from holdfast.model.errors import PeerFailed, RemoteProtocolError
from holdfast.model.property_names import UNIQUE_KEY
from holdfast.store.log.record_reader import decode_at
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.records.inner_batch import Opening, is_inner_batch
from holdfast.wire.records.message_id import format_message_id, parse_message_id
from holdfast.wire.records.record import StoredRecord
from holdfast.wire.requests.offsets import ViewMessageFields

_ASK_TIMEOUT_MS: Final = 2_000  # Who returns a message waits five seconds, and then sends a new one.


class Found(msgspec.Struct, frozen=True):
    """A record, and where it is.

    Attributes:
        record: Of a batch, that of the single message.
        address: Of the broker that has it; None when that is this one.
        is_inside: It is one of many in a batch.
    """

    record: StoredRecord
    address: str | None = None
    is_inside: bool = False

    @property
    def message_id(self) -> str:
        """The id by which nothing else can be meant."""
        unique_key = properties_of(self.record).get(UNIQUE_KEY) if self.is_inside else None
        return unique_key or format_message_id(self.record.store_host, self.record.position)


class Whereabouts:
    """Finds records in the logs of all brokers."""

    def __init__(self, view: ClusterView, opened: OpenedBatches, handed: HandedOut) -> None:
        self._view = view
        self._opened = opened
        self._handed = handed

    def find(self, position: int, message_id: str, silent: set[str] | None = None) -> Procedure[Found | None]:
        """Return the record of that id, which stands at *position* in somebody's log; None when nobody shows it.

        The names of brokers that could not be asked, and may have it, are added to *silent*.
        """
        record = yield from read_record(position)
        found = None if record is None else self._match(record, message_id)
        return found or (yield from self._find_elsewhere(position, message_id, set() if silent is None else silent))

    def find_handed(self, channel: ChannelId, position: int, group: str | None = None) -> Procedure[list[Found]]:
        """Return every record at *position* of some log that a client can have got by way of this broker.

        Raises:
            PeerFailed: there may be one at a broker that cannot be asked now.
        """
        found: list[Found] = []
        for topic, message_id in self._handed.find(channel, position, group):
            silent: set[str] = set()
            shown = yield from self.find(position, message_id, silent)
            if shown is None and silent:
                raise PeerFailed(f"position {position} may be one of {', '.join(sorted(silent))}: no answer from there")
            if shown is not None and shown.record.topic == topic:
                found.append(shown)
        return found

    def _match(self, record: StoredRecord, message_id: str, address: str | None = None) -> Found | None:
        """Return what is meant by an id, if that is *record*, or one of its messages."""
        if is_inner_batch(record.sys_flag):
            inside = self.find_inside(record, message_id, is_own=address is None)
            return None if inside is None else Found(inside, address, is_inside=True)
        return Found(record, address) if is_named(record, message_id) else None

    def find_inside(self, record: StoredRecord, message_id: str, *, is_own: bool = True) -> StoredRecord | None:
        """Return the message of a batch that has that id, as if it had been sent alone; None when there is none."""
        batch = (self._opened.open_own if is_own else self._opened.open)(record, Reason.RETRY)
        index = None if batch is None else batch.find_id(message_id)
        return None if batch is None or index is None else batch.record(index)

    def _find_elsewhere(self, position: int, message_id: str, silent: set[str]) -> Procedure[Found | None]:
        asked: set[str] = set()
        missed: set[str] = set()
        likely = _address_in(message_id)
        for is_fresh in (False, True):
            if is_fresh:  # Somebody may be new.
                yield from self._view.refresh()
            # A stranger wrote the id: nobody is asked who is not a broker of this cluster.
            brokers = sorted(self._view.brokers(), key=lambda broker: self._view.address(broker) != likely)
            for broker in brokers:
                if broker in asked:
                    continue
                asked.add(broker)
                try:
                    found = yield from self._ask_broker(broker, position, message_id)
                except PeerFailed:
                    missed.add(broker)
                    continue
                if found is not None:
                    return found
        # Where it was stored, it is no more; who has another address now may have been there then.
        if likely not in {self._view.address(broker) for broker in asked - missed}:
            silent |= missed
        return None

    def _ask_broker(self, broker: str, position: int, message_id: str) -> Procedure[Found | None]:
        """Return what a broker shows.

        Raises:
            PeerFailed: it cannot be asked.
        """
        fields = to_fields(ViewMessageFields(offset=position, opens_batches=Opening.WANTED.value))
        command = Command(code=RequestCode.VIEW_MESSAGE_BY_ID, fields=fields)
        address = yield from self._view.find_address(broker)
        answer: Command = yield PeerCall(address, command, _ASK_TIMEOUT_MS)
        record = decode_at(answer.body, position) if answer.code == ResponseCode.SUCCESS else None
        return None if record is None else self._match(record, message_id, address)


def is_named(record: StoredRecord, *message_ids: str | None) -> bool:
    """Return whether one of *message_ids* is an id of *record*."""
    own = {properties_of(record).get(UNIQUE_KEY), format_message_id(record.store_host, record.position)}
    return any(message_id and message_id in own for message_id in message_ids)


def _address_in(message_id: str) -> str | None:
    try:
        return parse_message_id(message_id).address
    except RemoteProtocolError:
        return None
