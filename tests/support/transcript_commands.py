"""The commands of transcripts. `Commands.execute` runs one line; `tests/scenarios/README.md` explains each command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any, Final

import msgspec
from tests.support.cluster.broker_machine import a_send
from tests.support.cluster.raw_requests import Answer
from tests.support.cluster.route_views import route_view
from tests.support.transcript import CommandError
from tests.support.transcript_client import TranscriptClient, as_client
from tests.support.transcript_cluster import TranscriptCluster
from tests.support.transcript_tables import (
    Stored,
    blank,
    blank_numbers,
    code_name,
    is_success,
    refusal,
    runs,
    segment_row,
    table,
)

from holdfast.model.errors import HoldfastError
from holdfast.wire.cluster.route import decode_route
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.requests.moves import MappingsAnswer
from holdfast.wire.requests.offsets import QueryOffsetFields, QueueFields, UpdateOffsetFields

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_READABLE: Final = {ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED}
_START_MS: Final = 2_000
_END_LIMIT_MS: Final = 60_000
_TRAFFIC_LIMIT_MS: Final = 120_000
_MOVE_ID: Final = re.compile(r"\S+\.18[0-9a-f]{9}\.\d+")
_OPTION: Final = re.compile(r"[a-z]+=")


class Usage(msgspec.Struct, frozen=True):
    """How a command is written: `NAME`, `[NAME]`, `NAME...`, and options as `[name=VALUE]`."""

    text: str
    least: int
    most: int | None
    options: frozenset[str]


Handler = Callable[["Commands", list[str], dict[str, str]], str]
_COMMANDS: dict[str, tuple[Usage, Handler]] = {}


def _command(text: str) -> Callable[[Handler], Handler]:
    """Register a method as the command that is written like *text*."""
    name, *words = text.split()
    places = [word for word in words if "=" not in word]
    usage = Usage(
        text,
        sum(not word.startswith("[") for word in places),
        None if any(word.endswith("...") for word in places) else len(places),
        frozenset(re.findall(r"\[(\w+)=", text)),
    )

    def register(handler: Handler) -> Handler:
        _COMMANDS[name] = (usage, handler)
        return handler

    return register


def usages() -> list[str]:
    """Return how each command is written."""
    return [usage.text for usage, _ in _COMMANDS.values()]


class Commands:
    """The commands of one transcript, and the cluster on which they act."""

    def __init__(self) -> None:
        self._cluster: TranscriptCluster | None = None
        self._move = "MOVE"
        self._numbered: dict[tuple[str, int], int] = {}  # how many messages of a queue got numbered keys
        self._traffic: dict[tuple[str, int], tuple[list[Command | HoldfastError], int]] = {}

    def execute(self, line: str) -> str:
        """Run a command; return its output.

        Raises:
            CommandError: there is no such command, or it is written in another way.
        """
        try:
            name, *words = shlex.split(line)
        except ValueError as error:
            raise CommandError(f"{line!r}: {error}") from None
        if name == "holdfast":
            return self._holdfast(words)
        if name not in _COMMANDS:
            raise CommandError(f"no command {name!r}; there are {', '.join(sorted([*_COMMANDS, 'holdfast']))}")
        usage, handler = _COMMANDS[name]
        options = dict(word.split("=", 1) for word in words if _OPTION.match(word))
        places = [word for word in words if not _OPTION.match(word)]
        is_fitting = len(places) >= usage.least and (usage.most is None or len(places) <= usage.most)
        if not is_fitting or not options.keys() <= usage.options:
            raise CommandError(f"{line!r} is not: {usage.text}")
        return blank(handler(self, places, options))

    @property
    def cluster(self) -> TranscriptCluster:
        """The servers."""
        if self._cluster is None:
            self._cluster = TranscriptCluster()
        return self._cluster

    @property
    def client(self) -> TranscriptClient:
        """The clients."""
        return TranscriptClient(self.cluster)

    def _holdfast(self, words: list[str]) -> str:
        """Run the command line; the word MOVE stands for the newest id of a move that it printed."""
        result = self.cluster.holdfast(*(self._move if word == "MOVE" else word for word in words))
        status = f"exit status {result.status}" if result.status else ""
        self._move = max(_MOVE_ID.findall(result.out), default=self._move)
        return blank(f"{result.out}\n{result.err}\n{status}")

    # Servers.

    @_command("cluster [nameservers=N] [retention=TIME]")
    def make_cluster(self, _places: list[str], options: dict[str, str]) -> str:
        """Start name servers; without this command there is one."""
        if self._cluster is not None:
            raise CommandError("'cluster' must be the first command")
        retention_ms = _duration(options["retention"]) if "retention" in options else None
        count = _number(options.get("nameservers", "1"))
        self._cluster = TranscriptCluster(name_servers=count, retention_ms=retention_ms)
        return ""

    @_command("start SERVER... [unit=UNIT] [of=BROKER] [failover=auto] [replication=sync]")
    def start(self, places: list[str], options: dict[str, str]) -> str:
        """Start brokers, or servers that ended."""
        settings: dict[str, Any] = {"auto_force": options.get("failover") == "auto"}
        if "replication" in options:
            settings["replication"] = options["replication"]
        for name in places:
            if name in self.cluster.servers:
                self.cluster.servers[name].start()
            else:
                self.cluster.add_broker(name, unit=options.get("unit"), replica_of=options.get("of"), **settings)
        self.cluster.run(_START_MS)
        return ""

    @_command("stop SERVER...")
    def stop(self, places: list[str], _options: dict[str, str]) -> str:
        """End servers in order."""
        for name in places:
            node = self.cluster.require_server(name)
            node.stop(lambda: None)
            assert self.cluster.run(_END_LIMIT_MS, lambda node=node: not node.is_up), f"{name} does not end"
        return ""

    @_command("kill SERVER... [when=SERVER:REQUEST]")
    def kill(self, places: list[str], options: dict[str, str]) -> str:
        """End processes at once, or as soon as a server gets a request."""
        receiver, _, code = options.get("when", "").partition(":")
        for name in places:
            node = self.cluster.require_server(name)
            if "when" in options:
                self.cluster.require_server(receiver)
                self.cluster.set_trap(name, receiver, _request_code(code))
            else:
                node.kill()
        return ""

    @_command("poweroff SERVER...")
    def power_off(self, places: list[str], _options: dict[str, str]) -> str:
        """End hosts: their peers are not notified."""
        for name in places:
            self.cluster.require_server(name).power_off()
        return ""

    @_command("wipe SERVER")
    def wipe(self, places: list[str], _options: dict[str, str]) -> str:
        """Give a server that is down an empty disk."""
        if self.cluster.require_server(places[0]).is_up:
            raise CommandError(f"{places[0]} runs: end it first")
        self.cluster.wipe(places[0])
        return ""

    @_command("cut SERVER SERVER")
    def cut(self, places: list[str], _options: dict[str, str]) -> str:
        """Stop all traffic between two servers."""
        self.cluster.cut(*map(self.cluster.require_server, places))
        return ""

    @_command("mend")
    def mend(self, _places: list[str], _options: dict[str, str]) -> str:
        """Undo every `cut`."""
        self.cluster.network.mend()
        return ""

    @_command("wait TIME")
    def wait(self, places: list[str], _options: dict[str, str]) -> str:
        """Let time pass."""
        self.cluster.run(_duration(places[0]))
        return ""

    # Messages.

    @_command("send TOPIC QUEUE [KEY]... [count=N] [size=BYTES] [via=BROKER] [unit=UNIT] [scope=UNIT] [as=KIND]")
    def send(self, places: list[str], options: dict[str, str]) -> str:
        """Send messages, with their keys as bodies or with numbered keys."""
        topic, queue, keys = places[0], _number(places[1]), places[2:]
        if bool(keys) == ("count" in options):
            raise CommandError("'send' needs keys or count=N")
        stored, refused = [], []
        for key in keys or self._number_keys(topic, queue, _number(options["count"])):
            body = key.encode().ljust(_number(options.get("size", "0")))
            answer = self.client.ask_leader(topic, queue, a_send(topic, queue=queue, body=body), options)
            if is_success(answer):
                stored.append(self.client.stored(key, answer))
            else:
                refused.append(f"{key}: {refusal(answer)}")
        return "\n".join([*runs(stored, "stored by"), *refused])

    @_command("traffic TOPIC QUEUE [count=N] [pause=TIME] [via=BROKER]")
    def traffic(self, places: list[str], options: dict[str, str]) -> str:
        """Begin to send numbered messages, one after the other, to the leader of now."""
        topic, queue = places[0], _number(places[1])
        server = options.get("via") or self.client.find_leader(topic, queue, options)
        self.cluster.require_server(server)
        keys = self._number_keys(topic, queue, _number(options.get("count", "50")))
        commands = [as_client(a_send(topic, queue=queue, body=key.encode()), options) for key in keys]
        answers = self.cluster.send_repeatedly(server, commands, _duration(options.get("pause", "5ms")))
        self._traffic[topic, queue] = (answers, len(keys))
        return ""

    @_command("outcome TOPIC QUEUE")
    def outcome(self, places: list[str], _options: dict[str, str]) -> str:
        """Wait for the end of the traffic of a queue; say what became of it, not who stored how much of it."""
        queue = (places[0], _number(places[1]))
        if queue not in self._traffic:
            raise CommandError(f"no traffic of queue {queue[1]} of {queue[0]} was begun")
        answers, count = self._traffic.pop(queue)
        assert self.cluster.run(_TRAFFIC_LIMIT_MS, lambda: len(answers) == count), "traffic does not end"
        stored = [self.client.stored("", answer) for answer in answers if is_success(answer)]
        refused = sorted({refusal(answer) for answer in answers if not is_success(answer)})
        if not stored:
            return "\n".join([f"0 of {count} acknowledged", *refused])
        offsets = [message.offset for message in stored]
        is_contiguous = offsets == list(range(offsets[0], offsets[0] + len(offsets)))
        order = "in order, without a gap" if is_contiguous else f"not contiguous: {offsets}"
        brokers = ", ".join(sorted({message.broker for message in stored}))
        span = f"offsets {offsets[0]}-{offsets[-1]} {order}"
        return "\n".join([f"{len(stored)} of {count} acknowledged, {span}, by {brokers}", *refused])

    @_command("pull TOPIC QUEUE OFFSET [max=N] [via=BROKER] [unit=UNIT] [scope=UNIT] [as=KIND]")
    def pull(self, places: list[str], options: dict[str, str]) -> str:
        """Pull once."""
        answer, found = self.client.pull(places[0], _number(places[1]), _number(places[2]), options)
        if isinstance(answer, HoldfastError) or "nextBeginOffset" not in answer.fields:
            return refusal(answer)
        rows = [(message.offset, message.key, message.broker) for message in found]
        lines = [table(("offset", "key", "stored by"), rows)] if rows else []
        return "\n".join([*lines, f"{code_name(answer.code)}, next offset {answer.fields['nextBeginOffset']}"])

    @_command("read TOPIC QUEUE [OFFSET] [via=BROKER] [unit=UNIT] [scope=UNIT] [as=KIND]")
    def read(self, places: list[str], options: dict[str, str]) -> str:
        """Pull until the end of a queue, or until a broker refuses."""
        topic, queue, offset = places[0], _number(places[1]), _number(places[2]) if len(places) > 2 else 0
        read: list[Stored] = []
        while True:
            answer, found = self.client.pull(topic, queue, offset, options)
            read += found
            if isinstance(answer, HoldfastError) or answer.code not in _READABLE:
                break
            assert int(answer.fields["nextBeginOffset"]) != offset, "the next offset is the same"
            offset = int(answer.fields["nextBeginOffset"])
        is_end = isinstance(answer, Command) and answer.code == ResponseCode.PULL_NOT_FOUND
        return "\n".join([*runs(read, "from"), f"end at {offset}" if is_end else f"at {offset}: {refusal(answer)}"])

    def _number_keys(self, topic: str, queue: int, count: int) -> list[str]:
        first = self._numbered.get((topic, queue), 0)
        self._numbered[topic, queue] = first + count
        return [f"m{number}" for number in range(first, first + count)]

    # Offsets.

    @_command("bounds TOPIC QUEUE [via=BROKER] [unit=UNIT] [scope=UNIT]")
    def bounds(self, places: list[str], options: dict[str, str]) -> str:
        """Ask for the first and the next offset of a queue."""
        queue = _number(places[1])
        fields = to_fields(QueueFields(topic=places[0], queue_id=queue))
        smallest, next_one = (
            self.client.ask_leader(places[0], queue, Command(code=code, fields=dict(fields)), options)
            for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
        )
        return f"min {_offset(smallest)}\nmax {_offset(next_one)}"

    @_command("commit GROUP TOPIC QUEUE OFFSET [via=BROKER] [unit=UNIT] [scope=UNIT]")
    def commit(self, places: list[str], options: dict[str, str]) -> str:
        """Commit a consumer offset."""
        group, topic, queue, offset = places[0], places[1], _number(places[2]), _number(places[3])
        fields = UpdateOffsetFields(consumer_group=group, topic=topic, queue_id=queue, commit_offset=offset)
        command = Command(code=RequestCode.UPDATE_CONSUMER_OFFSET, fields=to_fields(fields))
        answer = self.client.ask_leader(topic, queue, command, options)
        return "" if is_success(answer) else refusal(answer)

    @_command("committed GROUP TOPIC QUEUE [via=BROKER] [unit=UNIT] [scope=UNIT]")
    def committed(self, places: list[str], options: dict[str, str]) -> str:
        """Ask for a committed consumer offset."""
        group, topic, queue = places[0], places[1], _number(places[2])
        fields = QueryOffsetFields(consumer_group=group, topic=topic, queue_id=queue, set_zero_if_not_found=False)
        command = Command(code=RequestCode.QUERY_CONSUMER_OFFSET, fields=to_fields(fields))
        return _offset(self.client.ask_leader(topic, queue, command, options))

    # Views.

    @_command("mapping TOPIC [BROKER]...")
    def mapping(self, places: list[str], _options: dict[str, str]) -> str:
        """Show the segments that each broker records."""
        rows: list[list[object]] = []
        silent = []
        for name in places[1:] or list(self.cluster.brokers):
            answer = self.client.ask(name, Command(code=RequestCode.GET_MAPPINGS), {})
            if not is_success(answer):
                silent.append(f"{name}: {'down' if isinstance(answer, HoldfastError) else refusal(answer)}")
                continue
            for config in java_json.decode(answer.body, MappingsAnswer).topics:
                if config.name == places[0] and config.mapping is not None and config.mapping.extras is not None:
                    for queue, segments in sorted(config.mapping.extras.queues.items()):
                        rows += [[name, queue, *segment_row(segment)] for segment in segments]
        headings = ("at", "queue", "generation", "broker", "physical", "logical start", "start", "end", "")
        return "\n".join([table(headings, rows), *silent])

    @_command("route TOPIC [unit=UNIT] [as=KIND] [from=NAMESERVER]")
    def route(self, places: list[str], options: dict[str, str]) -> str:
        """Show the route that a client gets."""
        answer = self.client.ask_route(places[0], options)
        if not is_success(answer):
            return refusal(answer)
        view = route_view(Answer(answer.code, answer.remark or "", answer.fields, answer.body))
        found = decode_route(answer.body)
        leaders = {
            (queue.broker_name, queue.queue_id): leader.broker for queue, leader in found.leaders(places[0]).items()
        }
        queues = [
            (*queue, ("r" if queue in view.reads else "-") + ("w" if queue in view.writes else "-"), leaders.get(queue))
            for queue in sorted(view.reads | view.writes)
        ]
        addresses = [
            (data.broker_name, data.cluster, number, self.cluster.name_at(address))
            for data in sorted(found.broker_datas, key=lambda data: data.broker_name)
            for number, address in sorted(data.broker_addrs.items())
        ]
        parts = [
            table(("queue of", "number", "allows", "leader"), queues),
            table(("broker", "cluster", "id", "server"), addresses),
        ]
        return "\n".join(parts)

    @_command("log SERVER [has=TEXT]")
    def log(self, places: list[str], options: dict[str, str]) -> str:
        """Show what a server logged since the last time, or of it only the lines with a text."""
        lines = self.cluster.pop_log(self.cluster.require_server(places[0]).name)
        return "\n".join(blank_numbers(line) for line in lines if options.get("has", "") in line)


def _offset(answer: Command | HoldfastError) -> str:
    return answer.fields["offset"] if is_success(answer) else refusal(answer)


def _number(word: str) -> int:
    if not word.isdecimal():
        raise CommandError(f"{word!r} is not a number")
    return int(word)


def _duration(word: str) -> int:
    found = re.fullmatch(r"(\d+)(ms|s|m|h)", word)
    if found is None:
        raise CommandError(f"{word!r} is not a time, such as 20ms, 5s, 2m or 1h")
    return int(found[1]) * _UNITS_MS[found[2]]


def _request_code(name: str) -> RequestCode:
    if name not in RequestCode.__members__:
        raise CommandError(f"no request {name!r}; there are {', '.join(sorted(RequestCode.__members__))}")
    return RequestCode[name]
