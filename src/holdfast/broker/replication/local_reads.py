"""Local reads: sends a consumer that reads another unit to a replica in the consumer's own unit.

    master    a pull names a unit, and units are open ─> a caught-up replica in that unit ─> its number is in the answer
    replica   a pull of its unit ─┬─ caught up ────────────────────────────> answered with its own number: stay here
                                  ├─ lags, while the master is up ─────────> ask the master
                                  └─ the offset would be corrected ────────> ask the master, which has the whole queue

Only pulls go to the replica: offsets and locks stay with the master while it is up. Both logs have the same records, so
a consumer may switch between them at any offset.

A replica reports its unit and whether it has caught up to its master, in the fields of the 28 of its table sync.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from holdfast.broker.consume.physical_pull import Puller
from holdfast.broker.consume.pull import Pulled, Pulls, ask_again
from holdfast.broker.flow.awaitables import Pause, Procedure
from holdfast.broker.flow.turn import Errands
from holdfast.broker.options import BrokerOptions
from holdfast.machine.effects import Piece
from holdfast.model.numbers import parse_count
from holdfast.model.route import MASTER_ID
from holdfast.wire.requests.pull import COMMIT_OFFSET, PullHeader, is_moved_answer, suggest_broker

REPLICA_FIELD: Final = "hf.replica"
UNIT_FIELD: Final = "hf.unit"
CAUGHT_UP_FIELD: Final = "hf.caughtUp"
_SUSPEND_MAX_MS: Final = 3_000  # Limits the long poll, so that a consumer soon notices that the replica lags.
_TURN_AWAY_MS: Final = 100  # A consumer that cannot reach the master comes back here: keep it from looping.
_UNIT_LENGTH_MAX: Final = 255
_REPLICAS_MAX: Final = 64
_MARKS_MAX: Final = 64


class CatchUp:
    """Tracks up to which time a replica's copy is complete.

    Every sync asks for the end of the master's log. Once the log here reaches it, the copy is complete as of that sync.
    """

    def __init__(self) -> None:
        self._marks: deque[tuple[int, int]] = deque()  # when the master was asked, and its end then
        self._complete_ms: int | None = None
        self._heard_ms: int | None = None

    def heard(self, asked_ms: int, position: int) -> None:
        """Record the end of the master's log, as of *asked_ms*."""
        self._heard_ms = asked_ms
        if len(self._marks) < _MARKS_MAX:  # A replica that lags far reaches the old marks first.
            self._marks.append((asked_ms, position))

    def failed(self) -> None:
        """Record that the master does not answer."""
        self._heard_ms = None

    def reached(self, position: int) -> None:
        """Record the end of the log here."""
        while self._marks and self._marks[0][1] <= position:
            self._complete_ms, _ = self._marks.popleft()

    def is_within(self, lag_ms: int, now_ms: int) -> bool:
        """Return whether the replica lacks nothing that is older than *lag_ms*."""
        return self._complete_ms is not None and now_ms - self._complete_ms <= lag_ms

    def has_master(self, lag_ms: int, now_ms: int) -> bool:
        """Return whether the master answered, not longer than *lag_ms* ago."""
        return self._heard_ms is not None and now_ms - self._heard_ms <= lag_ms


class _Replica(msgspec.Struct, frozen=True):
    """The last report of a replica."""

    unit: str
    is_caught_up: bool
    heard_ms: int


class LocalReads:
    """Answers pulls that name a unit with the number of the broker to pull from next.

    Args:
        options: Options of this broker.
        pulls: Answers pulls.
        opens: Returns whether units are open, for a topic and a group.
        catch_up: The progress of this broker if it is a replica.
        errands: Provides the time.
    """

    def __init__(
        self,
        options: BrokerOptions,
        pulls: Pulls,
        opens: Callable[[str, str], bool],
        catch_up: CatchUp,
        errands: Errands,
    ) -> None:
        self._options = options
        self._pulls = pulls
        self._opens = opens
        self._catch_up = catch_up
        self._errands = errands
        self._replicas: dict[int, _Replica] = {}

    # Reports of replicas.

    def report(self) -> dict[str, str]:
        """Return the fields that report this replica's unit and state to its master; none if it serves no unit."""
        unit = self._options.replica_unit
        if unit is None:
            return {}
        return {
            REPLICA_FIELD: str(self._options.replica_id),
            UNIT_FIELD: unit,
            CAUGHT_UP_FIELD: str(self._is_caught_up()).lower(),
        }

    def note_report(self, fields: Mapping[str, str]) -> None:
        """Record the report in a 28 if it has one: tools send the same request without a report."""
        number, unit = parse_count(fields.get(REPLICA_FIELD), 0), fields.get(UNIT_FIELD, "")
        is_known = number in self._replicas or len(self._replicas) < _REPLICAS_MAX
        if number > MASTER_ID and 0 < len(unit) <= _UNIT_LENGTH_MAX and is_known:
            is_caught_up = fields.get(CAUGHT_UP_FIELD) == "true"
            self._replicas[number] = _Replica(unit, is_caught_up, self._errands.now_ms)

    # Pulls.

    def take(self, header: PullHeader, puller: Puller) -> Pulled:
        """Answer a pull whose consumer names its unit."""
        if self._is_beside(header):
            if not self._is_caught_up() and self._has_master():
                return self._turn_away(header, puller.serializer)
            fields = header.fields
            fields.suspend_timeout_millis = min(fields.suspend_timeout_millis, _SUSPEND_MAX_MS)
            if self._has_master():
                fields.sys_flag &= ~COMMIT_OFFSET  # The master keeps the offsets.
        return self.guide(header, puller.serializer, self._pulls.take(header, puller))

    def guide(self, header: PullHeader, serializer: int, pulled: Pulled) -> Pulled:
        """Return the answer to such a pull, with the number of the broker to pull from next."""
        if pulled is None:
            return None
        if isinstance(pulled, list):
            return self._address(header, serializer, pulled)
        return self._address_later(header, serializer, pulled)

    def _address_later(
        self, header: PullHeader, serializer: int, pulled: Procedure[list[Piece]]
    ) -> Procedure[list[Piece]]:
        return self._address(header, serializer, (yield from pulled))

    def _address(self, header: PullHeader, serializer: int, pieces: list[Piece]) -> list[Piece]:
        head = bytes(pieces[0])
        if self._is_beside(header) and self._has_master() and is_moved_answer(head, serializer):
            # The queue may start at a later offset here than at the master, and only the master has pending resets.
            return [ask_again(header, serializer, "ASK_THE_MASTER")]
        number = self._find_place(header)
        return pieces if number == MASTER_ID else [suggest_broker(head, serializer, number), *pieces[1:]]

    def _turn_away(self, header: PullHeader, serializer: int) -> Procedure[list[Piece]]:
        yield Pause(_TURN_AWAY_MS)
        return [ask_again(header, serializer, "ASK_THE_MASTER")]

    def _find_place(self, header: PullHeader) -> int:
        """Return the number of the broker to pull from next; 0 is the master."""
        options, fields = self._options, header.fields
        if options.is_replica:
            return options.replica_id if self._is_beside(header) and self._is_caught_up() else MASTER_ID
        if fields.unit == options.cluster or not self._opens(fields.topic, fields.consumer_group):
            return MASTER_ID
        since_ms = self._errands.now_ms - options.replica_read_lag_ms
        near = [
            number
            for number, replica in self._replicas.items()
            if replica.unit == fields.unit and replica.is_caught_up and replica.heard_ms >= since_ms
        ]
        return min(near, default=MASTER_ID)

    def _is_beside(self, header: PullHeader) -> bool:
        """Return whether this broker is a replica in the consumer's unit."""
        return self._options.is_replica and header.fields.unit == self._options.replica_unit

    def _is_caught_up(self) -> bool:
        return self._catch_up.is_within(self._options.replica_read_lag_ms, self._errands.now_ms)

    def _has_master(self) -> bool:
        return self._catch_up.has_master(self._options.replica_read_lag_ms, self._errands.now_ms)
