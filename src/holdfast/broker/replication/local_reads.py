"""Reading beside the reader: a consumer that reads another unit is sent to a replica that stands in its own.

    master    a pull names a unit, and units are open ─> a caught-up replica in that unit ─> its number is in the answer
    replica   a pull of its unit ─┬─ caught up ──────────────────────────> answered with its own number: stay here
                                  ├─ behind, while the master is up ─────> ask the master
                                  └─ the reader would be moved elsewhere ─> ask the master, which has the whole queue

Only pulls go to the replica: offsets and locks stay with the master while it is up. The records are the same in both
logs, so a reader may change between them at any offset.

A replica reports to its master where it stands and whether it has caught up, with the 28 of its table sync.
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
_SUSPEND_MAX_MS: Final = 3_000  # So soon a waiting reader learns that the replica has fallen behind.
_TURN_AWAY_MS: Final = 100  # A reader that does not find the master comes back here: not at once, and again and again.
_UNIT_LENGTH_MAX: Final = 255
_REPLICAS_MAX: Final = 64
_MARKS_MAX: Final = 64


class CatchUp:
    """How far a replica has copied its master, in time.

    Every sync asks for the master's end. As soon as the log here is as far, the replica had everything when it asked.
    """

    def __init__(self) -> None:
        self._marks: deque[tuple[int, int]] = deque()  # when the master was asked, and its end then
        self._complete_ms: int | None = None
        self._heard_ms: int | None = None

    def heard(self, asked_ms: int, position: int) -> None:
        """Take note of the master's end."""
        self._heard_ms = asked_ms
        if len(self._marks) < _MARKS_MAX:  # A replica that lags far behind reaches the old ones first.
            self._marks.append((asked_ms, position))

    def failed(self) -> None:
        """Take note that the master does not answer."""
        self._heard_ms = None

    def reached(self, position: int) -> None:
        """Take note of how far the log is here."""
        while self._marks and self._marks[0][1] <= position:
            self._complete_ms, _ = self._marks.popleft()

    def is_within(self, lag_ms: int, now_ms: int) -> bool:
        """Return whether the replica lacks nothing that is older than *lag_ms*."""
        return self._complete_ms is not None and now_ms - self._complete_ms <= lag_ms

    def has_master(self, lag_ms: int, now_ms: int) -> bool:
        """Return whether the master answered, not longer than *lag_ms* ago."""
        return self._heard_ms is not None and now_ms - self._heard_ms <= lag_ms


class _Replica(msgspec.Struct, frozen=True):
    """What a replica reported."""

    unit: str
    is_caught_up: bool
    heard_ms: int


class LocalReads:
    """Says to pulls of a unit where to read on.

    Args:
        options: This broker's.
        pulls: Where pulls are answered.
        opens: Returns whether units are open, for a topic and a group.
        catch_up: How far this broker is, if it is a replica.
        errands: Knows the time.
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

    # What replicas report.

    def report(self) -> dict[str, str]:
        """Return the fields with which this replica tells its master where it stands; none if it serves no unit."""
        unit = self._options.replica_unit
        if unit is None:
            return {}
        return {
            REPLICA_FIELD: str(self._options.replica_id),
            UNIT_FIELD: unit,
            CAUGHT_UP_FIELD: str(self._is_caught_up()).lower(),
        }

    def note_report(self, fields: Mapping[str, str]) -> None:
        """Take note of the report in a 28, if it has one: tools send the same request without."""
        number, unit = parse_count(fields.get(REPLICA_FIELD), 0), fields.get(UNIT_FIELD, "")
        is_known = number in self._replicas or len(self._replicas) < _REPLICAS_MAX
        if number > MASTER_ID and 0 < len(unit) <= _UNIT_LENGTH_MAX and is_known:
            is_caught_up = fields.get(CAUGHT_UP_FIELD) == "true"
            self._replicas[number] = _Replica(unit, is_caught_up, self._errands.now_ms)

    # Pulls.

    def take(self, header: PullHeader, puller: Puller) -> Pulled:
        """Answer a pull whose reader names its unit."""
        if self._is_beside(header):
            if not self._is_caught_up() and self._has_master():
                return self._turn_away(header, puller.serializer)
            fields = header.fields
            fields.suspend_timeout_millis = min(fields.suspend_timeout_millis, _SUSPEND_MAX_MS)
            if self._has_master():
                fields.sys_flag &= ~COMMIT_OFFSET  # The master keeps the offsets.
        return self.guide(header, puller.serializer, self._pulls.take(header, puller))

    def guide(self, header: PullHeader, serializer: int, pulled: Pulled) -> Pulled:
        """Return the answer to such a pull with the number of the broker where to read on."""
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
            # The queue may begin later here than at the master, and the master knows who was reset.
            return [ask_again(header, serializer, "ASK_THE_MASTER")]
        number = self._find_place(header)
        return pieces if number == MASTER_ID else [suggest_broker(head, serializer, number), *pieces[1:]]

    def _turn_away(self, header: PullHeader, serializer: int) -> Procedure[list[Piece]]:
        yield Pause(_TURN_AWAY_MS)
        return [ask_again(header, serializer, "ASK_THE_MASTER")]

    def _find_place(self, header: PullHeader) -> int:
        """Return the number of the broker where to read on: 0 is the master."""
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
        """Return whether this is a replica in the unit of the reader."""
        return self._options.is_replica and header.fields.unit == self._options.replica_unit

    def _is_caught_up(self) -> bool:
        return self._catch_up.is_within(self._options.replica_read_lag_ms, self._errands.now_ms)

    def _has_master(self) -> bool:
        return self._catch_up.has_master(self._options.replica_read_lag_ms, self._errands.now_ms)
