"""The results of the access part, and the sums they come from.

Ratios and differences are taken within each round, between adjacent readings, and the median of the rounds counts: the
speed of a machine changes from round to round.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Final, Literal

import msgspec
from benchmarks.load import LoadResult
from benchmarks.servers import Kind
from benchmarks.targets import Target

Protection = Literal["plain", "again", "tls", "login", "signed"]
"""How a connection is protected; again: plain, at a second broker that is started like the first one."""
Work = Literal["send", "pull"]

WORKS: Final[tuple[Work, ...]] = ("send", "pull")
PROTECTIONS: Final[dict[Kind, tuple[Protection, ...]]] = {
    "holdfast": ("plain", "again", "login", "signed", "tls"),
    "java": ("plain", "signed", "tls"),
}
LOGIN_COST_MAX: Final = 0.03
SIGNATURE_US_MAX: Final = 8.0


class AccessReading(msgspec.Struct, frozen=True, kw_only=True):
    """One load against one broker.

    Attributes:
        broker_s: Processor time of the broker, user and system, from the start of the load until the broker is quiet.
        foreign_cores: Use by all processes except broker and generator, including the host's share.
    """

    load: LoadResult
    broker_s: float
    foreign_cores: float

    @property
    def rate(self) -> float:
        """Accepted requests per second."""
        return self.load.requests_per_s

    @property
    def cost_us(self) -> float:
        """Processor time of the broker per answered request."""
        return self.broker_s / (self.load.total_requests - self.load.unanswered) * 1e6


class AccessFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The readings of one kind of broker, protection and work, one for each round. Figures are medians."""

    kind: Kind
    protection: Protection
    work: Work
    readings: list[AccessReading]

    @property
    def rate(self) -> float:
        """Accepted requests per second."""
        return self.median(lambda reading: reading.rate)

    @property
    def cost_us(self) -> float:
        """Processor time of the broker per answered request."""
        return self.median(lambda reading: reading.cost_us)

    @property
    def spread(self) -> float:
        """(max - min) / median of the rates."""
        rates = [reading.rate for reading in self.readings]
        return (max(rates) - min(rates)) / self.rate if self.rate else 0.0

    @property
    def refused(self) -> dict[str, int]:
        """The number of answers with a code other than 0, in all readings, by code."""
        found: dict[str, int] = {}
        for reading in self.readings:
            for code, count in reading.load.refused.items():
                found[code] = found.get(code, 0) + count
        return found

    def median(self, value: Callable[[AccessReading], float]) -> float:
        """Return the median of a value of all readings."""
        return statistics.median(map(value, self.readings))


class AccessFindings(msgspec.Struct, frozen=True, kw_only=True):
    """All figures, and the load average of the machine before the run."""

    figures: list[AccessFigures]
    seconds: float
    load: float

    def find(self, kind: Kind, protection: Protection, work: Work) -> AccessFigures:
        """Return the figures of one row."""
        return next(
            each for each in self.figures if (each.kind, each.protection, each.work) == (kind, protection, work)
        )

    def rate_share(self, kind: Kind, protection: Protection, work: Work) -> float:
        """Return the rate as a share of the plain rate."""
        return statistics.median(self._shares(kind, protection, work, lambda reading: reading.rate))

    def cost_share(self, kind: Kind, protection: Protection, work: Work) -> float:
        """Return the cost of a request as a share of the plain cost."""
        return statistics.median(self._shares(kind, protection, work, lambda reading: reading.cost_us))

    def added_us(self, kind: Kind, protection: Protection, work: Work) -> float:
        """Return how much more processor time a request costs than on a plain connection."""
        pairs = self._pairs(kind, protection, work)
        return statistics.median(reading.cost_us - plain.cost_us for reading, plain in pairs)

    def tls_share_beside_java(self, work: Work) -> float:
        """Return our ratio to Java's rate with TLS, as a share of the ratio of plain traffic."""
        ours, java = (self._shares(kind, "tls", work, lambda reading: reading.rate) for kind in PROTECTIONS)
        return statistics.median(our / of_java for our, of_java in zip(ours, java, strict=True))

    @property
    def targets(self) -> list[Target]:
        """All targets beside the figures."""
        return [target for work in WORKS for target in self._targets(work)]

    def _targets(self, work: Work) -> list[Target]:
        return [
            Target(
                what=f"{work}: rate with a login, as a share of plain",
                measured=self.rate_share("holdfast", "login", work),
                wanted=1 - LOGIN_COST_MAX,
                is_least=True,
            ),
            Target(
                what=f"{work}: processor time with a login, as a share of plain",
                measured=self.cost_share("holdfast", "login", work),
                wanted=1 + LOGIN_COST_MAX,
            ),
            Target(
                what=f"{work}: processor time of a signature",
                measured=self.added_us("holdfast", "signed", work),
                wanted=SIGNATURE_US_MAX,
                unit="us",
            ),
            Target(
                what=f"{work}: ours / Java with TLS, as a share of ours / Java plain",
                measured=self.tls_share_beside_java(work),
                wanted=1.0,
                is_least=True,
            ),
        ]

    def _pairs(self, kind: Kind, protection: Protection, work: Work) -> list[tuple[AccessReading, AccessReading]]:
        """Return every reading with the plain one of the same round."""
        plain = self.find(kind, "plain", work)
        return list(zip(self.find(kind, protection, work).readings, plain.readings, strict=True))

    def _shares(
        self, kind: Kind, protection: Protection, work: Work, value: Callable[[AccessReading], float]
    ) -> list[float]:
        return [value(reading) / value(plain) for reading, plain in self._pairs(kind, protection, work)]
