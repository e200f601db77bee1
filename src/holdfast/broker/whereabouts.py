"""Where a record is that a client names by its position in some broker's log (36, 37).

    position, id ─> the record here ─┬─ has that id ─> it is this one
                                     └─ none, or another ─> asked for (33): at the broker whose address is in the id,
                                                            then at all others ─> there, or nowhere

A client of a static topic may not know which broker stored a message: the queue moved, or one broker passes everything
on for it. A position means something in one log only, and in others there may be another record at it. So it is the id
that decides: the sender's unique key, or host and position.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.broker.cluster_view import ClusterView
from holdfast.broker.records import properties_of, read_record
from holdfast.broker.waits import PeerCall, Procedure
from holdfast.model.errors import PeerFailed, RemoteProtocolError
from holdfast.model.property_names import UNIQUE_KEY
from holdfast.store.record_steps import decode_at
from holdfast.wire.codes import RequestCode, ResponseCode
from holdfast.wire.command import Command
from holdfast.wire.fields import to_fields
from holdfast.wire.message_id import format_message_id, parse_message_id
from holdfast.wire.offsets import ViewMessageFields
from holdfast.wire.record import StoredRecord

_ASK_TIMEOUT_MS: Final = 2_000  # Who returns a message waits five seconds, and then sends a new one.


class Found(msgspec.Struct, frozen=True):
    """A record, and where it is.

    Attributes:
        address: Of the broker that has it; None when that is this one.
    """

    record: StoredRecord
    address: str | None = None


class Whereabouts:
    """Finds records in the logs of all brokers."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    def find(self, position: int, message_id: str) -> Procedure[Found | None]:
        """Return the record of that id, which stands at *position* in somebody's log; None when nobody shows it."""
        record = yield from read_record(position)
        if record is not None and is_named(record, message_id):
            return Found(record)
        return (yield from self._find_far(position, message_id))

    def _find_far(self, position: int, message_id: str) -> Procedure[Found | None]:
        asked: set[str] = set()
        for is_fresh in (False, True):
            if is_fresh:  # Somebody may be new.
                yield from self._view.refresh()
            # A stranger wrote the id: nobody is asked who is not a broker of this cluster.
            likely = _address_in(message_id)
            brokers = sorted(self._view.brokers(), key=lambda broker: self._view.address(broker) != likely)
            for broker in brokers:
                if broker not in asked:
                    asked.add(broker)
                    found = yield from self._look_at(broker, position, message_id)
                    if found is not None:
                        return found
        return None

    def _look_at(self, broker: str, position: int, message_id: str) -> Procedure[Found | None]:
        command = Command(code=RequestCode.VIEW_MESSAGE_BY_ID, fields=to_fields(ViewMessageFields(offset=position)))
        try:
            address = yield from self._view.find_address(broker)
            answer: Command = yield PeerCall(address, command, _ASK_TIMEOUT_MS)
        except PeerFailed:
            return None
        record = decode_at(answer.body, position) if answer.code == ResponseCode.SUCCESS else None
        return Found(record, address) if record is not None and is_named(record, message_id) else None


def is_named(record: StoredRecord, *message_ids: str | None) -> bool:
    """Return whether one of *message_ids* is an id of *record*."""
    own = {properties_of(record).get(UNIQUE_KEY), format_message_id(record.store_host, record.position)}
    return any(message_id and message_id in own for message_id in message_ids)


def _address_in(message_id: str) -> str | None:
    try:
        return parse_message_id(message_id).address
    except RemoteProtocolError:
        return None
