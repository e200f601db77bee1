"""Asks every name server who serves the topics of a run, and compares with who is really there."""

from __future__ import annotations

from random import Random
from typing import Final

from holdfast.model.errors import HoldfastError
from holdfast.sim.client import SimClient
from holdfast.sim.orders import ORDERED_TOPIC, PLAIN_TOPIC
from holdfast.wire.codes import RequestCode, ResponseCode
from holdfast.wire.command import Command
from holdfast.wire.route import decode_route

_TOPICS: Final = (PLAIN_TOPIC, ORDERED_TOPIC)


class Surveyor(SimClient):
    """Asks when it is told to.

    Attributes:
        found: Which brokers each name server names for each topic; None where there was no answer.
    """

    def __init__(self, name_servers: str, chance: Random) -> None:
        super().__init__("surveyor", name_servers, chance)
        self.found: dict[tuple[str, str], list[str] | None] = {}

    def started(self) -> None:
        """Ask every name server about every topic, and again every second."""
        for address in self._name_servers.addresses:
            for topic in _TOPICS:
                self._ask(address, topic)
        self.after(1_000, self.started)

    def _ask(self, address: str, topic: str) -> None:
        def answered(answer: Command | HoldfastError) -> None:
            if isinstance(answer, HoldfastError):
                self.found[address, topic] = None
            elif answer.code == ResponseCode.TOPIC_NOT_EXIST:
                self.found[address, topic] = []
            else:
                self.found[address, topic] = sorted(
                    broker.broker_name for broker in decode_route(answer.body).broker_datas
                )

        self.ask(address, Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": topic}), answered)

    def find_wrong(self, alive: list[str]) -> str | None:
        """Return what is wrong with the routes when just the brokers *alive* are there; None when they are true."""
        for address in self._name_servers.addresses:
            for topic in _TOPICS:
                named = self.found.get((address, topic))
                if named != alive:
                    return f"{address} says that {topic} is at {named}, alive are {alive}"
        return None
