"""Looks up some messages by their unique key: every acknowledged message must be found."""

from __future__ import annotations

from random import Random
from typing import Final

from holdfast.model.errors import HoldfastError
from holdfast.sim.actors.client import SimClient
from holdfast.sim.checkers.ledger import Ack, Ledger
from holdfast.sim.world.workload import Kind, uid_of
from holdfast.sim.world.world import Violation
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.records.record import decode_records
from holdfast.wire.requests.offsets import QueryMessageFields

_SAMPLE_MAX: Final = 12
_PAUSE_MS: Final = 200
_INDEX_MS: Final = 5_000  # The index follows the log with a delay.


class Searcher(SimClient):
    """Queries a few messages from the brokers that store them."""

    def __init__(self, name_servers: str, rng: Random, *, ledger: Ledger) -> None:
        super().__init__("searcher", name_servers, rng)
        self._started_ms = 0
        plain = [
            (planned.uid, ledger.acks[planned.uid][0])
            for planned in ledger.expected()
            if planned.kind in {Kind.PLAIN, Kind.KEYED}
        ]
        self._remaining = dict(rng.sample(plain, min(_SAMPLE_MAX, len(plain))))

    @property
    def is_done(self) -> bool:
        """Whether every message was found."""
        return not self._remaining

    def started(self) -> None:
        """Query all messages."""
        self._started_ms = self.now_ms
        for uid, ack in list(self._remaining.items()):
            self._query(uid, ack)

    def _query(self, uid: str, ack: Ack) -> None:
        fields = to_fields(
            QueryMessageFields(topic=ack.queue_offset.topic, key=uid, unique_key=True, reads_mappings=True)
        )

        def answered(answer: Command | HoldfastError) -> None:
            if isinstance(answer, HoldfastError):
                self.after(_PAUSE_MS, lambda: self._query(uid, ack))
                return
            is_found = answer.code == ResponseCode.SUCCESS and any(
                record.position == ack.log_position.position and uid_of(bytes(record.body)) == uid
                for record in decode_records(answer.body)
            )
            if is_found:
                del self._remaining[uid]
            elif self.now_ms - self._started_ms < _INDEX_MS:
                self.after(_PAUSE_MS, lambda: self._query(uid, ack))
            else:
                raise Violation(
                    "an acknowledged message is found by its key", f"{uid}: {ack.queue_offset}, {answer.remark}"
                )

        self.request(ack.log_position.address, Command(code=RequestCode.QUERY_MESSAGE, fields=fields), answered)
