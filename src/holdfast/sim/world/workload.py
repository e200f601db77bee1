"""The messages to send, with their properties: the application's own database, which survives every crash.

A lane is a series of messages that one producer sends. A lane with a key sends the next message only after the previous
one was acknowledged, however many attempts that takes. Other lanes have a few messages in flight. After a kill, a
producer sends every unacknowledged message again, because it cannot know which were stored.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from random import Random
from typing import Final

import msgspec

PLAIN_TOPIC: Final = "plain"
ORDERED_TOPIC: Final = "ordered"
PRODUCER_GROUP: Final = "makers"
RECONSUME_MAX: Final = 3
"""How often a message is redelivered before it becomes a dead letter."""

_SEPARATOR: Final = b"|"
_DELAY_LEVELS: Final = (1, 2)


class Kind(Enum):
    """The kinds of messages."""

    PLAIN = "plain"
    KEYED = "keyed"
    DELAYED = "delayed"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


TRANSACTIONAL: Final = frozenset({Kind.COMMITTED, Kind.ROLLED_BACK})


class PlannedMessage(msgspec.Struct, frozen=True):
    """One message to be sent.

    Attributes:
        key: Messages of one key stay in order; *number* counts them.
        is_silent: The producer of this transaction reports the outcome only when a broker asks for it.
        failures: How often consuming it fails before it succeeds; None for always.
        parts: The messages of a batch, which is sent as one; empty for a single message.
    """

    uid: str
    topic: str
    kind: Kind
    size: int
    key: str | None = None
    number: int = 0
    delay_level: int = 0
    is_silent: bool = False
    failures: int | None = 0
    parts: tuple[PlannedMessage, ...] = ()

    @property
    def stored_messages(self) -> tuple[PlannedMessage, ...]:
        """The messages that are stored when this is sent: itself, or the parts of the batch."""
        return self.parts or (self,)

    @property
    def body(self) -> bytes:
        """The body of the message: its uid, then padding."""
        return (self.uid.encode() + _SEPARATOR).ljust(self.size, b".")


def uid_of(body: bytes) -> str:
    """Return the uid in a message body. The body of any other message yields a uid that no planned message has."""
    return body.partition(_SEPARATOR)[0].decode(errors="replace")


class SendSequence:
    """A series of messages that one producer sends.

    Attributes:
        pause_ms: The longest pause between two messages.
    """

    def __init__(self, messages: list[PlannedMessage], *, window: int, pause_ms: int) -> None:
        self.pause_ms = pause_ms
        self._window = window
        self._unsent = deque(messages)
        self._in_flight: dict[str, PlannedMessage] = {}

    def begin_next(self) -> PlannedMessage | None:
        """Return the next message to send, or None if there is none or too many are in flight."""
        if not self._unsent or len(self._in_flight) >= self._window:
            return None
        planned = self._unsent.popleft()
        self._in_flight[planned.uid] = planned
        return planned

    def finish(self, planned: PlannedMessage) -> None:
        """Record that *planned* was acknowledged."""
        self._in_flight.pop(planned.uid, None)

    def requeue_in_flight(self) -> None:
        """Put back the messages that a dead producer had not finished."""
        self._unsent.extendleft(reversed(self._in_flight.values()))
        self._in_flight.clear()

    @property
    def is_done(self) -> bool:
        """Whether every message was acknowledged."""
        return not self._unsent and not self._in_flight


class MessageMix(msgspec.Struct, frozen=True, kw_only=True):
    """The mix of messages in a run, as shares of the plain topic's messages.

    Attributes:
        uses_inner_batches: The plain topic is indexed by record, and batches are kept whole.
    """

    delayed: float = 0.0
    transactions: float = 0.0
    failing: float = 0.0
    poisoned: float = 0.0
    batches: float = 0.0
    size_max: int = 600
    uses_inner_batches: bool = False


class Workload:
    """Every message of a run, and the lanes of every producer.

    Attributes:
        uses_inner_batches: Whether a batch is sent as one record.
    """

    def __init__(
        self, rng: Random, *, producers: list[str], message_count: int, storm_ms: int, message_mix: MessageMix
    ) -> None:
        self.messages: dict[str, PlannedMessage] = {}
        self.sequences: dict[str, list[SendSequence]] = {}
        self._rng = rng
        self._message_mix = message_mix
        self.uses_inner_batches = message_mix.uses_inner_batches
        share = max(2, message_count // len(producers))
        for producer in producers:
            keys = [f"{producer}k{number}" for number in range(rng.randint(1, 3))]
            keyed_count = share // 2 // len(keys)
            unkeyed_count = share - keyed_count * len(keys)
            sequences = [
                SendSequence(self._draw_keyed(key, keyed_count), window=1, pause_ms=storm_ms // max(1, keyed_count))
                for key in keys
            ]
            unkeyed = [self._draw_unkeyed(f"{producer}-{number}") for number in range(unkeyed_count)]
            sequences.append(
                SendSequence(unkeyed, window=rng.randint(1, 8), pause_ms=storm_ms // max(1, unkeyed_count))
            )
            self.sequences[producer] = sequences

    @property
    def is_done(self) -> bool:
        """Whether every message was acknowledged."""
        return all(sequence.is_done for sequences in self.sequences.values() for sequence in sequences)

    def add(self, planned: PlannedMessage) -> PlannedMessage:
        """Register *planned* and return it."""
        self.messages[planned.uid] = planned
        return planned

    def _draw_keyed(self, key: str, count: int) -> list[PlannedMessage]:
        return [
            self.add(
                PlannedMessage(
                    uid=f"{key}-{number}",
                    topic=ORDERED_TOPIC,
                    kind=Kind.KEYED,
                    size=self._draw_size(),
                    key=key,
                    number=number,
                    failures=1 if self._rng.random() < self._message_mix.failing else 0,
                )
            )
            for number in range(count)
        ]

    def _draw_unkeyed(self, uid: str) -> PlannedMessage:
        rng, message_mix = self._rng, self._message_mix
        kind, level, is_silent = Kind.PLAIN, 0, False
        if rng.random() < message_mix.batches:
            return self._draw_batch(uid)
        draw = rng.random()
        if draw < message_mix.delayed:
            kind, level = Kind.DELAYED, rng.choice(_DELAY_LEVELS)
        elif draw < message_mix.delayed + message_mix.transactions:
            kind = rng.choice((Kind.COMMITTED, Kind.ROLLED_BACK))
            is_silent = rng.random() < 0.4
        failures: int | None = 0
        if rng.random() < message_mix.poisoned:
            failures = None
        elif rng.random() < message_mix.failing:
            failures = rng.randint(1, 2)
        return self.add(
            PlannedMessage(
                uid=uid,
                topic=PLAIN_TOPIC,
                kind=kind,
                size=self._draw_size(),
                delay_level=level,
                is_silent=is_silent,
                failures=failures,
            )
        )

    def _draw_batch(self, uid: str) -> PlannedMessage:
        parts = tuple(
            self.add(
                PlannedMessage(
                    uid=f"{uid}.{number}",
                    topic=PLAIN_TOPIC,
                    kind=Kind.PLAIN,
                    size=self._draw_size(),
                    failures=self._draw_part_failures(),
                )
            )
            for number in range(self._rng.randint(2, 6))
        )
        return PlannedMessage(uid=uid, topic=PLAIN_TOPIC, kind=Kind.PLAIN, size=0, parts=parts)

    def _draw_part_failures(self) -> int:
        """Return how often a message of a batch fails.

        It may fail only if batches are kept whole: it then returns as a single message.
        """
        return int(self.uses_inner_batches and self._rng.random() < self._message_mix.failing)

    def _draw_size(self) -> int:
        # Mostly small, sometimes larger than a page of the disk.
        if self._rng.random() < 0.02:
            return self._rng.randrange(4096, 9000)
        return self._rng.randrange(20, self._message_mix.size_max)
