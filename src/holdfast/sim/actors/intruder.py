"""A program without a user. It tries what only servers and users may do, at every server, and no server admits it."""

from __future__ import annotations

from random import Random
from typing import Final

from holdfast.model.access.user import CLUSTER_USER
from holdfast.model.errors import HoldfastError
from holdfast.sim.actors.client import SimClient
from holdfast.sim.world.workload import PLAIN_TOPIC
from holdfast.sim.world.world import Violation
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.requests.relay import RelayFields

_PAUSE_MS: Final = 500
_BROKER: Final = {"brokerName": "forged", "brokerAddr": "10.9.9.9:10911", "clusterName": "DefaultCluster"}
_SEND: Final = {"a": "makers", "b": PLAIN_TOPIC, "e": "0", "c": "TBW102", "d": "4", "f": "0", "g": "1", "h": "0"}
_PULL: Final = {
    "consumerGroup": "workers",
    "topic": PLAIN_TOPIC,
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subVersion": "0",
    "subscription": "*",
}
_ENVELOPE: Final = to_fields(
    RelayFields(
        source="forged", boot=1, number=1, settled=1, hops=1, client="10.9.9.9:1", user=CLUSTER_USER, topic=PLAIN_TOPIC
    )
)
_OF_NAME_SERVERS: Final = {
    RequestCode.REGISTER_BROKER: _BROKER,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: {"topic": PLAIN_TOPIC},
    RequestCode.RENEW_LEASES: {},
    RequestCode.SET_DR_SWITCH: {},
    RequestCode.SYNC_ACCESS: {"hf.digest": ""},
}
_OF_BROKERS: Final = {
    RequestCode.SEND_MESSAGE_V2: _SEND,
    RequestCode.PULL_MESSAGE: _PULL,
    RequestCode.RELAY: _ENVELOPE,
    RequestCode.BACKUP_OFFSETS: {},
    RequestCode.FORCE_QUEUES: {},
    RequestCode.SYNC_ACCESS: {"hf.digest": ""},
}


class Intruder(SimClient):
    """Sends each of these requests to each server, again while a server does not answer.

    Attributes:
        remaining: How many requests have not been refused yet.
    """

    def __init__(self, name_servers: str, rng: Random, *, brokers: list[str]) -> None:
        super().__init__("intruder", name_servers, rng)
        self._requests = [
            (address, code, fields)
            for addresses, requests in ((name_servers.split(";"), _OF_NAME_SERVERS), (brokers, _OF_BROKERS))
            for address in addresses
            for code, fields in requests.items()
        ]
        self.remaining = len(self._requests)

    def started(self) -> None:
        """Try everything, without a login."""
        self.credentials = None
        for address, code, fields in self._requests:
            self._try(address, code, fields)

    def _try(self, address: str, code: RequestCode, fields: dict[str, str]) -> None:
        def answered(answer: Command | HoldfastError) -> None:
            if isinstance(answer, HoldfastError):
                self.after(_PAUSE_MS, lambda: self._try(address, code, fields))
            elif answer.code != ResponseCode.NO_PERMISSION:
                text = f"{address} answered {code.name} with code {answer.code}: {answer.remark or 'no remark'}"
                raise Violation("a program without a user is refused", text)
            else:
                self.remaining -= 1

        self.request(address, Command(code=code, fields=dict(fields)), answered)
