"""An admin access that answers from a script: which code, sent to which server, gets what. No sockets.

access = ScriptedAccess(brokers_by_name={"broker-a": "a:1"})
access.on(RequestCode.GET_MAX_OFFSET, lambda request: {"offset": "7"})      fields of a success
access.on(RequestCode.GET_TOPIC_CONFIG, lambda request: b'{"topicName":"t"}')  body of a success
access.on(RequestCode.DELETE_TOPIC_IN_BROKER, lambda request: 17)             a refusal with that code
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

import msgspec

from holdfast.admin.cluster_access import ClusterAccess, Header
from holdfast.model.errors import BrokerRefused, ConnectionLost, HoldfastError
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields

NAME_SERVER = "namesrv:9876"


@dataclass(frozen=True)
class ScriptedRequest:
    """One request."""

    address: str
    code: RequestCode
    fields: dict[str, str]
    body: bytes = b""


Reply = dict[str, str] | bytes | int | HoldfastError | Command
Script = Callable[[ScriptedRequest], Reply]


@dataclass
class ScriptedAccess(ClusterAccess):
    """Answers what the script says; a code without a line gets 3, as from a server that does not know it."""

    brokers_by_name: dict[str, str] = field(default_factory=lambda: {"broker-a": "a:1"})
    clusters: dict[str, str] = field(default_factory=dict)  # of those that are not in "c"
    topics: dict[str, dict[str, int]] = field(default_factory=dict)
    requests: list[ScriptedRequest] = field(default_factory=list)
    scripts: dict[RequestCode, Script] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)  # brokers by name, and addresses of name servers

    def __post_init__(self) -> None:
        self.on(RequestCode.GET_BROKER_CLUSTER_INFO, self._cluster_info)
        self.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route)
        self.on(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, lambda _: _json({"topicList": list(self.topics)}))

    @property
    def name_servers(self) -> tuple[str, ...]:
        """One of them."""
        return (NAME_SERVER,)

    def on(self, code: RequestCode, script: Script) -> Self:
        """Let *script* answer *code*."""
        self.scripts[code] = script
        return self

    def kill(self, *servers: str) -> None:
        """Let brokers, or name servers by address, answer nothing. Name servers still list such a broker."""
        self.dead |= {*servers}

    def restart(self, *servers: str) -> None:
        """Let servers answer again."""
        self.dead -= {*servers}

    def requests_of(self, code: RequestCode) -> list[ScriptedRequest]:
        """Return every request of that code so far."""
        return [request for request in self.requests if request.code == code]

    async def invoke(self, address: str, code: RequestCode, header: Header = None, body: bytes = b"") -> Command:
        """Answer from the script; a refusal is raised."""
        answer = self._reply(ScriptedRequest(address, code, _fields(header), body))
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerRefused(answer.code, answer.remark or "", address=address)
        return answer

    async def invoke_unchecked(
        self, address: str, code: RequestCode, header: Header, *, timeout_s: float | None = None
    ) -> Command:
        """Answer from the script, refusals too."""
        del timeout_s
        return self._reply(ScriptedRequest(address, code, _fields(header)))

    async def invoke_name_server(self, code: RequestCode, header: Header = None, body: bytes = b"") -> Command:
        """Answer from the script."""
        return await self.invoke(self.preferred_name_server or NAME_SERVER, code, header, body)

    async def invoke_all_name_servers(self, code: RequestCode, header: Header) -> None:
        """Take note."""
        await self.invoke(NAME_SERVER, code, header)

    def _reply(self, request: ScriptedRequest) -> Command:
        self.requests.append(request)
        if request.address in self.dead | {self.brokers_by_name.get(name, "") for name in self.dead}:
            raise ConnectionLost(f"cannot connect to {request.address}")
        script = self.scripts.get(request.code)
        reply = 3 if script is None else script(request)
        if isinstance(reply, HoldfastError):
            raise reply
        if isinstance(reply, Command):
            return reply
        if isinstance(reply, int):
            return Command(code=reply, remark="scripted")
        if isinstance(reply, bytes):
            return Command(code=0, body=reply)
        return Command(code=0, fields=reply)

    def _cluster_info(self, request: ScriptedRequest) -> Reply:
        del request
        table = {
            name: {"cluster": self.clusters.get(name, "c"), "brokerName": name, "brokerAddrs": {"0": address}}
            for name, address in self.brokers_by_name.items()
        }
        return _json({"brokerAddrTable": table, "clusterAddrTable": {"c": list(table)}})

    def _route(self, request: ScriptedRequest) -> Reply:
        hosts = self.topics.get(request.fields["topic"])
        if hosts is None:
            return ResponseCode.TOPIC_NOT_EXIST
        return _json(
            {
                "brokerDatas": [
                    {
                        "cluster": self.clusters.get(name, "c"),
                        "brokerName": name,
                        "brokerAddrs": {"0": self.brokers_by_name[name]},
                    }
                    for name in hosts
                ],
                "queueDatas": [
                    {"brokerName": name, "readQueueNums": count, "writeQueueNums": count, "perm": 6}
                    for name, count in hosts.items()
                ],
            }
        )


def _fields(header: Header) -> dict[str, str]:
    return to_fields(header) if isinstance(header, msgspec.Struct) else dict(header or {})


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)
