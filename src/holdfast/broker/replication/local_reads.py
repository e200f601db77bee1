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
from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.broker.consume.physical_pull import Puller
from holdfast.broker.consume.pull import PullHandler, PullResult, retry_answer
from holdfast.broker.flow.awaitables import Pause, Procedure
from holdfast.broker.options import BrokerOptions
from holdfast.machine.effects import Piece
from holdfast.machine.turn import Turn
from holdfast.model.numbers import parse_count
from holdfast.model.route import MASTER_ID
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.requests.admin import RuntimeInfoFields
from holdfast.wire.requests.pull import COMMIT_OFFSET, PullHeader, is_offset_moved_answer, suggest_broker

_SUSPEND_MAX_MS: Final = 3_000  # Limits the long poll, so that a consumer soon notices that the replica lags.
_REDIRECT_DELAY_MS: Final = 100  # A consumer that cannot reach the master comes back here: keep it from looping.
_UNIT_LENGTH_MAX: Final = 255
_REPLICAS_MAX: Final = 64
_PENDING_ENDS_MAX: Final = 64


class CatchUp:
    """Tracks up to which time a replica's copy is complete.

    Every sync asks for the end of the master's log. Once the log here reaches it, the copy is complete as of that sync.
    """

    def __init__(self) -> None:
        self._pending_ends: deque[tuple[int, int]] = deque()  # when the master was asked, and its end then
        self._complete_ms: int | None = None
        self._answered_ms: int | None = None

    def master_answered(self, requested_ms: int, position: int) -> None:
        """Record the end of the master's log, as of *requested_ms*."""
        self._answered_ms = requested_ms
        if len(self._pending_ends) < _PENDING_ENDS_MAX:  # A replica that lags far reaches the old marks first.
            self._pending_ends.append((requested_ms, position))

    def master_failed(self) -> None:
        """Record that the master does not answer."""
        self._answered_ms = None

    def reached(self, position: int) -> None:
        """Record the end of the log here."""
        while self._pending_ends and self._pending_ends[0][1] <= position:
            self._complete_ms, _ = self._pending_ends.popleft()

    def is_within(self, lag_ms: int, now_ms: int) -> bool:
        """Return whether the replica lacks nothing that is older than *lag_ms*."""
        return self._complete_ms is not None and now_ms - self._complete_ms <= lag_ms

    def has_master(self, lag_ms: int, now_ms: int) -> bool:
        """Return whether the master answered, not longer than *lag_ms* ago."""
        return self._answered_ms is not None and now_ms - self._answered_ms <= lag_ms


class _Replica(msgspec.Struct, frozen=True):
    """The last report of a replica."""

    unit: str
    is_caught_up: bool
    reported_ms: int


class LocalReads:
    """Answers pulls that name a unit with the number of the broker to pull from next.

    Args:
        options: Options of this broker.
        pulls: Answers pulls.
        is_open_for: Returns whether units are open, for a topic and a group.
        catch_up: The progress of this broker if it is a replica.
        turn: Provides the time.
    """

    def __init__(
        self,
        options: BrokerOptions,
        pulls: PullHandler,
        is_open_for: Callable[[str, str], bool],
        catch_up: CatchUp,
        turn: Turn,
    ) -> None:
        self._options = options
        self._pulls = pulls
        self._is_open_for = is_open_for
        self._catch_up = catch_up
        self._turn = turn
        self._replicas: dict[int, _Replica] = {}

    # Reports of replicas.

    def report(self) -> dict[str, str]:
        """Return the fields that report this replica's unit and state to its master; none if it serves no unit."""
        unit = self._options.replica_unit
        if unit is None:
            return {}
        is_caught_up = str(self._is_caught_up()).lower()
        return to_fields(
            RuntimeInfoFields(replica_id=str(self._options.replica_id), unit=unit, is_caught_up=is_caught_up)
        )

    def note_report(self, report: RuntimeInfoFields) -> None:
        """Record the report in a 28 if it has one: tools send the same request without a report."""
        number, unit = parse_count(report.replica_id, 0), report.unit
        is_known = number in self._replicas or len(self._replicas) < _REPLICAS_MAX
        if number > MASTER_ID and 0 < len(unit) <= _UNIT_LENGTH_MAX and is_known:
            is_caught_up = report.is_caught_up == "true"
            self._replicas[number] = _Replica(unit, is_caught_up, self._turn.now_ms)

    # Pulls.

    def handle_pull(self, header: PullHeader, puller: Puller) -> PullResult:
        """Answer a pull whose consumer names its unit."""
        if self._is_local_replica(header):
            if not self._is_caught_up() and self._has_master():
                return self._redirect_to_master(header, puller.serializer)
            fields = header.fields
            fields.suspend_timeout_millis = min(fields.suspend_timeout_millis, _SUSPEND_MAX_MS)
            if self._has_master():
                fields.sys_flag &= ~COMMIT_OFFSET  # The master keeps the offsets.
        return self.suggest(header, puller.serializer, self._pulls.handle_pull(header, puller))

    def suggest(self, header: PullHeader, serializer: int, pulled: PullResult) -> PullResult:
        """Return the answer to such a pull, with the number of the broker to pull from next."""
        if pulled is None:
            return None
        if isinstance(pulled, list):
            return self._suggest(header, serializer, pulled)
        return self._suggest_later(header, serializer, pulled)

    async def _suggest_later(self, header: PullHeader, serializer: int, pulled: Procedure[list[Piece]]) -> list[Piece]:
        return self._suggest(header, serializer, await pulled)

    def _suggest(self, header: PullHeader, serializer: int, pieces: list[Piece]) -> list[Piece]:
        head = bytes(pieces[0])
        if self._is_local_replica(header) and self._has_master() and is_offset_moved_answer(head, serializer):
            # The queue may start at a later offset here than at the master, and only the master has pending resets.
            return [retry_answer(header, serializer, "ASK_THE_MASTER")]
        number = self._choose_broker(header)
        return pieces if number == MASTER_ID else [suggest_broker(head, serializer, number), *pieces[1:]]

    async def _redirect_to_master(self, header: PullHeader, serializer: int) -> list[Piece]:
        await Pause(_REDIRECT_DELAY_MS)
        return [retry_answer(header, serializer, "ASK_THE_MASTER")]

    def _choose_broker(self, header: PullHeader) -> int:
        """Return the number of the broker to pull from next; 0 is the master."""
        options, fields = self._options, header.fields
        if options.is_replica:
            return options.replica_id if self._is_local_replica(header) and self._is_caught_up() else MASTER_ID
        if fields.unit == options.cluster or not self._is_open_for(fields.topic, fields.consumer_group):
            return MASTER_ID
        since_ms = self._turn.now_ms - options.replica_read_lag_ms
        candidates = [
            number
            for number, replica in self._replicas.items()
            if replica.unit == fields.unit and replica.is_caught_up and replica.reported_ms >= since_ms
        ]
        return min(candidates, default=MASTER_ID)

    def _is_local_replica(self, header: PullHeader) -> bool:
        """Return whether this broker is a replica in the consumer's unit."""
        return self._options.is_replica and header.fields.unit == self._options.replica_unit

    def _is_caught_up(self) -> bool:
        return self._catch_up.is_within(self._options.replica_read_lag_ms, self._turn.now_ms)

    def _has_master(self) -> bool:
        return self._catch_up.has_master(self._options.replica_read_lag_ms, self._turn.now_ms)
