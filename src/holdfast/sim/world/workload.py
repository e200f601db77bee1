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


class Job(msgspec.Struct, frozen=True):
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
    parts: tuple[Job, ...] = ()

    @property
    def singles(self) -> tuple[Job, ...]:
        """The messages that are stored when this is sent: itself, or the parts of the batch."""
        return self.parts or (self,)

    @property
    def body(self) -> bytes:
        """The body of the message: its uid, then padding."""
        return (self.uid.encode() + _SEPARATOR).ljust(self.size, b".")


def uid_of(body: bytes) -> str:
    """Return the uid in a message body. The body of any other message yields a uid that no job has."""
    return body.partition(_SEPARATOR)[0].decode(errors="replace")


class Lane:
    """A series of messages that one producer sends.

    Attributes:
        pause_ms: The longest pause between two messages.
    """

    def __init__(self, jobs: list[Job], *, window: int, pause_ms: int) -> None:
        self.pause_ms = pause_ms
        self._window = window
        self._waiting = deque(jobs)
        self._in_flight: dict[str, Job] = {}

    def take(self) -> Job | None:
        """Return the next message to send, or None if there is none or too many are in flight."""
        if not self._waiting or len(self._in_flight) >= self._window:
            return None
        job = self._waiting.popleft()
        self._in_flight[job.uid] = job
        return job

    def finish(self, job: Job) -> None:
        """Record that *job* was acknowledged."""
        self._in_flight.pop(job.uid, None)

    def resume(self) -> None:
        """Put back the messages that a dead producer had not finished."""
        self._waiting.extendleft(reversed(self._in_flight.values()))
        self._in_flight.clear()

    @property
    def is_done(self) -> bool:
        """Whether every message was acknowledged."""
        return not self._waiting and not self._in_flight


class Taste(msgspec.Struct, frozen=True, kw_only=True):
    """The mix of messages in a run, as shares of the plain topic's messages.

    Attributes:
        keeps_batches: The plain topic is indexed by record, and batches are kept whole.
    """

    delayed: float = 0.0
    transactions: float = 0.0
    failing: float = 0.0
    poisoned: float = 0.0
    batches: float = 0.0
    size_max: int = 600
    keeps_batches: bool = False


class Orders:
    """Every message of a run, and the lanes of every producer.

    Attributes:
        keeps_batches: Whether a batch is sent as one record.
    """

    def __init__(self, chance: Random, *, producers: list[str], messages: int, storm_ms: int, taste: Taste) -> None:
        self.jobs: dict[str, Job] = {}
        self.lanes: dict[str, list[Lane]] = {}
        self._chance = chance
        self._taste = taste
        self.keeps_batches = taste.keeps_batches
        share = max(2, messages // len(producers))
        for producer in producers:
            keys = [f"{producer}k{number}" for number in range(chance.randint(1, 3))]
            keyed_count = share // 2 // len(keys)
            free_count = share - keyed_count * len(keys)
            lanes = [
                Lane(self._keyed(key, keyed_count), window=1, pause_ms=storm_ms // max(1, keyed_count)) for key in keys
            ]
            jobs = [self._free(f"{producer}-{number}") for number in range(free_count)]
            lanes.append(Lane(jobs, window=chance.randint(1, 8), pause_ms=storm_ms // max(1, free_count)))
            self.lanes[producer] = lanes

    @property
    def is_done(self) -> bool:
        """Whether every message was acknowledged."""
        return all(lane.is_done for lanes in self.lanes.values() for lane in lanes)

    def add(self, job: Job) -> Job:
        """Register *job* and return it."""
        self.jobs[job.uid] = job
        return job

    def _keyed(self, key: str, count: int) -> list[Job]:
        return [
            self.add(
                Job(
                    uid=f"{key}-{number}",
                    topic=ORDERED_TOPIC,
                    kind=Kind.KEYED,
                    size=self._size(),
                    key=key,
                    number=number,
                    failures=1 if self._chance.random() < self._taste.failing else 0,
                )
            )
            for number in range(count)
        ]

    def _free(self, uid: str) -> Job:
        chance, taste = self._chance, self._taste
        kind, level, is_silent = Kind.PLAIN, 0, False
        if chance.random() < taste.batches:
            return self._batch(uid)
        draw = chance.random()
        if draw < taste.delayed:
            kind, level = Kind.DELAYED, chance.choice(_DELAY_LEVELS)
        elif draw < taste.delayed + taste.transactions:
            kind = chance.choice((Kind.COMMITTED, Kind.ROLLED_BACK))
            is_silent = chance.random() < 0.4
        failures: int | None = 0
        if chance.random() < taste.poisoned:
            failures = None
        elif chance.random() < taste.failing:
            failures = chance.randint(1, 2)
        return self.add(
            Job(
                uid=uid,
                topic=PLAIN_TOPIC,
                kind=kind,
                size=self._size(),
                delay_level=level,
                is_silent=is_silent,
                failures=failures,
            )
        )

    def _batch(self, uid: str) -> Job:
        parts = tuple(
            self.add(
                Job(
                    uid=f"{uid}.{number}",
                    topic=PLAIN_TOPIC,
                    kind=Kind.PLAIN,
                    size=self._size(),
                    failures=self._part_failures(),
                )
            )
            for number in range(self._chance.randint(2, 6))
        )
        return Job(uid=uid, topic=PLAIN_TOPIC, kind=Kind.PLAIN, size=0, parts=parts)

    def _part_failures(self) -> int:
        """Return how often a message of a batch fails.

        It may fail only if batches are kept whole: it then returns as a single message.
        """
        return int(self.keeps_batches and self._chance.random() < self._taste.failing)

    def _size(self) -> int:
        # Mostly small, sometimes larger than a page of the disk.
        if self._chance.random() < 0.02:
            return self._chance.randrange(4096, 9000)
        return self._chance.randrange(20, self._taste.size_max)
