"""The clients of a transcript: requests of each kind of client, to the leader of a queue or to a broker by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from tests.support.cluster.broker_machine import a_pull
from tests.support.cluster.raw_requests import JAVA_4, JAVA_5, OUR_CLIENT
from tests.support.transcript import CommandError
from tests.support.transcript_cluster import TranscriptCluster
from tests.support.transcript_tables import Stored, refusal

from holdfast.model.errors import HoldfastError
from holdfast.model.scope import GLOBAL, mock_broker
from holdfast.wire.cluster.route import decode_route
from holdfast.wire.cluster.units import SCOPE_FIELD
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.host import format_host
from holdfast.wire.records.message_id import parse_message_id
from holdfast.wire.records.record import decode_records

KINDS: Final = {"ours": OUR_CLIENT, "java5": JAVA_5, "java4": JAVA_4}
Options = Mapping[str, str]
"""The options of a command that describe its client: `as`, `unit`, and where it sends: `via`, `scope`, `from`."""
_ROUTE_LIMIT_MS: Final = 5_000
_ROUTE_PAUSE_MS: Final = 200


class TranscriptClient:
    """Sends requests to the servers of a cluster, each on a new connection."""

    def __init__(self, cluster: TranscriptCluster) -> None:
        self._cluster = cluster

    def ask(self, server: str, command: Command, options: Options) -> Command | HoldfastError:
        """Return the answer of a server, or why there is none."""
        self._cluster.require_server(server)
        try:
            return self._cluster.ask(server, as_client(command, options))
        except HoldfastError as error:
            return error

    def ask_leader(self, topic: str, queue: int, command: Command, options: Options) -> Command | HoldfastError:
        """Return the answer of the leader of a queue, or of the broker in *options*."""
        return self.ask(options.get("via") or self.find_leader(topic, queue, options), command, options)

    def ask_route(self, topic: str, options: Options) -> Command | HoldfastError:
        """Return the answer of a name server to a query for a route."""
        command = Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": topic})
        return self.ask(options.get("from", "namesrv"), command, options)

    def find_leader(self, topic: str, queue: int, options: Options) -> str:
        """Return the server to which a client sends requests for a queue; ask again until there is one.

        Raises:
            CommandError: a client finds none in time.
        """
        found: list[str] = []
        for _ in range(_ROUTE_LIMIT_MS // _ROUTE_PAUSE_MS):
            server, reason = self._look_for_leader(topic, queue, options)
            if server is not None:
                return server
            found = [reason]
            self._cluster.run(_ROUTE_PAUSE_MS)
        raise CommandError(f"{found[0]}: name a broker with via=BROKER")

    def _look_for_leader(self, topic: str, queue: int, options: Options) -> tuple[str | None, str]:
        answer = self.ask_route(topic, {name: value for name, value in options.items() if name != "as"})
        if isinstance(answer, HoldfastError) or answer.code != ResponseCode.SUCCESS:
            return None, f"a client finds no route of {topic}, {refusal(answer)}"
        route = decode_route(answer.body)
        leaders = {(each.broker_name, each.queue_id): leader.broker for each, leader in route.leaders(topic).items()}
        scope = options.get("scope", options.get("unit", GLOBAL))
        name = leaders.get((mock_broker(scope), queue)) or leaders.get((mock_broker(GLOBAL), queue))
        address = None if name is None else route.address_of(name)
        if address is None:
            return None, f"a client knows no leader of queue {queue} of {topic}"
        return self._cluster.name_at(address), ""

    def pull(
        self, topic: str, queue: int, offset: int, options: Options
    ) -> tuple[Command | HoldfastError, list[Stored]]:
        """Pull once; return the answer, and the messages at their logical offsets."""
        command = a_pull(topic, queue=queue, offset=offset, maxMsgNums=options.get("max", "32"))
        answer = self.ask_leader(topic, queue, command, options)
        if isinstance(answer, HoldfastError) or answer.code != ResponseCode.SUCCESS:
            return answer, []
        delta = int(answer.fields.get("offsetDelta", "0"))
        return answer, [
            Stored(
                bytes(record.body).decode().rstrip(),
                queue,
                record.offset + delta,
                self._cluster.name_at(format_host(record.store_host)),
            )
            for record in decode_records(answer.body)
        ]

    def stored(self, key: str, answer: Command) -> Stored:
        """Return a message as the answer to its send describes it."""
        fields = answer.fields
        address = parse_message_id(fields["msgId"]).address
        return Stored(key, int(fields["queueId"]), int(fields["queueOffset"]), self._cluster.name_at(address))


def as_client(command: Command, options: Options) -> Command:
    """Return a request as a client of the kind and the unit in *options* sends it.

    Raises:
        CommandError: there is no such kind.
    """
    name = options.get("as", "ours")
    if name not in KINDS:
        raise CommandError(f"no kind of client {name!r}; there are {', '.join(KINDS)}")
    kind = KINDS[name]
    header = {field: value for field, value in kind.items() if field != "extFields"}
    unit = {SCOPE_FIELD: options["unit"]} if "unit" in options else {}
    return msgspec.structs.replace(command, fields={**command.fields, **kind.get("extFields", {}), **unit}, **header)
