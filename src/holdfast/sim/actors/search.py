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

    def __init__(self, name_servers: str, chance: Random, *, ledger: Ledger) -> None:
        super().__init__("searcher", name_servers, chance)
        self._begun_ms = 0
        plain = [
            (job.uid, ledger.acks[job.uid][0]) for job in ledger.expected() if job.kind in {Kind.PLAIN, Kind.KEYED}
        ]
        self._left = dict(chance.sample(plain, min(_SAMPLE_MAX, len(plain))))

    @property
    def is_done(self) -> bool:
        """Whether every message was found."""
        return not self._left

    def started(self) -> None:
        """Query all messages."""
        self._begun_ms = self.now_ms
        for uid, ack in list(self._left.items()):
            self._ask(uid, ack)

    def _ask(self, uid: str, ack: Ack) -> None:
        fields = to_fields(QueryMessageFields(topic=ack.place.topic, key=uid, unique_key=True, reads_mappings=True))

        def answered(answer: Command | HoldfastError) -> None:
            if isinstance(answer, HoldfastError):
                self.after(_PAUSE_MS, lambda: self._ask(uid, ack))
                return
            is_there = answer.code == ResponseCode.SUCCESS and any(
                record.position == ack.spot.position and uid_of(bytes(record.body)) == uid
                for record in decode_records(answer.body)
            )
            if is_there:
                del self._left[uid]
            elif self.now_ms - self._begun_ms < _INDEX_MS:
                self.after(_PAUSE_MS, lambda: self._ask(uid, ack))
            else:
                raise Violation("an acknowledged message is found by its key", f"{uid}: {ack.place}, {answer.remark}")

        self.ask(ack.spot.home, Command(code=RequestCode.QUERY_MESSAGE, fields=fields), answered)
