"""Guests: the clients of other brokers whose requests are being answered here."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from holdfast.broker.flow.request import Request
from holdfast.machine.effects import Piece
from holdfast.machine.events import ChannelId


class Guest(msgspec.Struct, eq=False):
    """The client of one envelope.

    Attributes:
        waiting: The envelopes to answer: the first, and every repetition that arrived before it was answered.
        missing: How many answers are still to come.
        envelope_key: The key under which its answer is remembered; None if the envelope holds no sends.
    """

    channel: ChannelId
    peer: str
    hops: int
    waiting: list[Request]
    missing: int
    envelope_key: tuple[tuple[str, int], int] | None
    pieces: list[Piece] = []


class Guests:
    """The guests of this process.

    Attributes:
        boot: The incarnation of this process.
        unanswered: Guests with missing answers, by their channel.
    """

    def __init__(self, boot: int) -> None:
        self.boot = boot
        self.unanswered: OrderedDict[ChannelId, Guest] = OrderedDict()

    def hops(self, channel: ChannelId) -> int:
        """Return how often the requests on *channel* have been relayed; 0 for a client of this broker."""
        guest = self.unanswered.get(channel)
        return 0 if guest is None else guest.hops
