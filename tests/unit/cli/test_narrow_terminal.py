"""Every table of the command line on a terminal of 80 columns, with values as long as they get in production.

A table that no case prints fails the last test: a new table needs a case here.
"""

import ast
import enum
import inspect
import io
import itertools
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from holdfast.access.acl_file_reader import read_acl_files
from holdfast.admin import tables
from holdfast.admin.access_control import Explanation, ImportedAccount, RuleDescription, UserRules, UserSummary
from holdfast.admin.cluster import BrokerDescription
from holdfast.admin.groups import GroupLag, GroupSummary
from holdfast.admin.moves import MovePlan
from holdfast.admin.offsets import OffsetChange
from holdfast.admin.tables import Printable, print_all
from holdfast.admin.topics import TopicSummary
from holdfast.cli import broker_keys, move_output
from holdfast.cli.commands import acl, broker, cluster, dr, group, index, message, profile, queue, topic, user
from holdfast.cli.profiles import Profile, Profiles
from holdfast.model.access.resource import Action, Resource, ResourceType
from holdfast.model.access.user import UserKind
from holdfast.model.route import Route
from holdfast.pipeline.archive import archive_job, backfill
from holdfast.pipeline.audit import audit_job
from holdfast.pipeline.convert import convert_job
from holdfast.pipeline.stats import stats_job

WIDTH = 80
SOURCE = Path(tables.__file__).parents[1]

MESSAGE_ID = "7F0000012343F70CFFBC4C090ADB0001"
ADDRESS = "192.168.117.203:10911"
TOPIC = "customer-orders-eu-west-1-production"
BROKER = "broker-eu-west-1-07"
MOVE_ID = "broker-eu-west-1-07.1a1ef2eee1f.12"
CLIENT_ID = "192.168.117.203@48213#1795014157561"
TIME_MS = 1_763_229_023_123
SENTENCE = "it does not answer: connection refused, is it running and is the port right"
WHOLE = (MESSAGE_ID, ADDRESS, MOVE_ID, CLIENT_ID)
# What a text is, by a part of its field's name.
TEXTS = {
    "client_id": CLIENT_ID,
    "address": ADDRESS,
    "message_id": MESSAGE_ID,
    "broker": BROKER,
    "brokers": BROKER,
    "leader": BROKER,
    "source": BROKER,
    "target": BROKER,
    "topic": TOPIC,
    "topics": TOPIC,
    "group": "billing-of-customer-orders",
    "fault": SENTENCE,
    "reason": SENTENCE,
    "remedy": SENTENCE,
    "text": SENTENCE,
    "replication": "1 of 2 in sync; behind: broker-eu-west-1-08 by 12 MiB",
    "permission": "rw",
    "version": "V5_3_3",
    "language": "JAVA",
    "model": "clustering",
    "cluster": "DefaultCluster",
    "state": "switching",
    "path": "consumequeue/customer-orders/3/00000000000006000000",
}
NUMBERS = {"queue": 12, "queues": 128, "queue_id": 12, "generation": 3, "id": 1, "members": 24, "permission": 6}


def sample(hint: Any, name: str = "", depth: int = 0) -> Any:
    """Return a value of a type as long as it gets in production; fields are known by their names."""
    kind = get_origin(hint)
    if kind is typing.Annotated:
        return sample(get_args(hint)[0], name, depth)
    if kind is Literal:
        return max(get_args(hint), key=lambda choice: len(str(choice)))
    if kind in {Union, types.UnionType}:
        return sample(next(part for part in get_args(hint) if part is not types.NoneType), name, depth)
    if kind in {list, Sequence}:
        return [sample(get_args(hint)[0], name, depth)] * 2
    if kind is tuple:
        return tuple(sample(part, name, depth) for part in get_args(hint) if part is not ...)
    if kind in {set, frozenset}:
        return kind([sample(get_args(hint)[0], name, depth)])
    if isinstance(hint, typing.NewType):
        return sample(hint.__supertype__, name, depth)
    if kind in {dict, Mapping}:
        key, value = get_args(hint)
        key = getattr(key, "__supertype__", key)
        return {3 if key is int else sample(key, name, depth): sample(value, name, depth)}
    if isinstance(hint, type):
        return _of_class(hint, name, depth)
    return None


def _of_class(kind: type, name: str, depth: int) -> Any:
    if issubclass(kind, enum.Enum):
        return max(kind, key=lambda choice: len(choice.name))
    if issubclass(kind, bool):
        return True
    if issubclass(kind, int):
        few = 12 if "queue" in name or name == "total" else 123_456_789
        return TIME_MS if name.endswith("_ms") else kind(NUMBERS.get(name, few))
    if issubclass(kind, float):
        return 12_345.6
    if issubclass(kind, str):
        if name == "id":
            return MOVE_ID
        return TEXTS.get(name, BROKER if name == "name" else f"{name or 'some'}-production")
    if issubclass(kind, bytes):
        return b'{"customer": 17, "items": [{"sku": "4711", "count": 3}], "paid": true}' if name == "body" else bytes(8)
    if depth > 6 or kind is object:
        return None
    if issubclass(kind, msgspec.Struct) or hasattr(kind, "__dataclass_fields__") or hasattr(kind, "_fields"):
        hints = get_type_hints(kind, include_extras=True)
        names = [field.name for field in msgspec.structs.fields(kind)] if issubclass(kind, msgspec.Struct) else hints
        return kind(**{each: sample(hints[each], each, depth + 1) for each in names})
    return None


class Answering:
    """A session whose cluster always gives one answer, and that keeps the printed parts."""

    as_json = False

    def __init__(self, answer: object) -> None:
        self._answer = answer
        self.printed: list[Printable] = []

    def execute(self, work: object) -> object:
        """Answer."""
        del work
        return self._answer

    def show(self, value: object, *printed: Printable) -> None:
        """Keep it."""
        del value
        self.printed += printed


def of(function: Callable[..., Any], **given: Any) -> Callable[[], list[Printable]]:
    """Return a case: what *function* makes of long values."""

    def make() -> list[Printable]:
        hints = get_type_hints(function, include_extras=True)
        arguments = {name: sample(hints[name], name) for name in inspect.signature(function).parameters} | given
        made = function(**arguments)
        if isinstance(made, (tables.Table, tables.Facts)):
            return [made]
        return list(made.printed()) if hasattr(made, "printed") else list(made)

    make.__name__ = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
    return make


def shown_by(command: Callable[..., None], answer: Any, **given: Any) -> Callable[[], list[Printable]]:
    """Return a case: what *command* shows when the cluster answers *answer*."""

    def make() -> list[Printable]:
        session = Answering(answer if not isinstance(answer, type) else sample(answer))
        command(session, **given)
        return session.printed

    make.__name__ = f"{command.__module__.rpartition('.')[2]}.{command.__name__}"
    return make


def _profiles() -> list[Printable]:
    saved = Profiles(default="staging", profiles={"staging": Profile(";".join([ADDRESS] * 4)), "local": Profile("a:1")})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile, "load_profiles", lambda _: saved)
        return _caught(lambda: profile.list_profiles(as_json=False))


def _index() -> list[Printable]:
    return _caught(lambda: index.show_report(sample(index.ConversionReport), as_json=False))


def _caught(call: Callable[[], None]) -> list[Printable]:
    found: list[Printable] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "print_all", found.extend)
        call()
    return found


def _moves(session: Any) -> None:
    move_output.show_plan(session, session.execute(None), goal="", dry_run=True)


def _route() -> Route:
    return sample(Route)  # type: ignore[no-any-return]


USER = "customer-orders-service"
RULES = [
    RuleDescription("Allow", f"Topic:{TOPIC}*", ["Pub", "Sub", "Get"], ["192.168.117.0/24", "10.0.0.0/8"], "Default"),
    RuleDescription("Deny", "*", ["All"], [], "Custom"),
]
ACL_1 = read_acl_files(
    [
        (
            "f",
            b"{accounts: [{accessKey: customer-orders-service, secretKey: 1234567, whiteRemoteAddress: 10.0.0.*}]}",
        )
    ]
)

CASES: list[Callable[[], list[Printable]]] = [
    shown_by(
        user.list_users,
        [UserSummary(USER, UserKind.SUPER, is_enabled=False), UserSummary("a", UserKind.NORMAL, True, 256)],
    ),
    shown_by(acl.list_rules, [UserRules(USER, RULES)]),
    of(
        acl._explanation,
        found=Explanation(is_allowed=False, reason=SENTENCE, matches=RULES, others=RULES),
        user=USER,
        action=Action.PUB,
        resource=Resource(ResourceType.TOPIC, TOPIC),
        ip="192.168.117.203",
    ),
    of(
        acl._import_parts,
        done=[ImportedAccount(USER, UserKind.SUPER, RULES, "differs")],
        acl=ACL_1,
        dry_run=True,
    ),
    of(broker.status_table),
    of(broker.blocker_parts, broker=BROKER),
    shown_by(broker.describe, [sample(BrokerDescription)], broker=BROKER),
    of(cluster.push_table),
    of(dr._server_table),
    of(dr._unit_table),
    of(dr._backlog_parts),
    shown_by(group.list_groups, [sample(GroupSummary)] * 2, everything=False),
    shown_by(group.lag, GroupLag, group="billing", topic=None),
    shown_by(
        group.reset,
        [sample(OffsetChange)],
        group="g",
        topic=TOPIC,
        to="earliest",
        queue=None,
        broker=None,
        dry_run=True,
    ),
    of(group._member_table),
    of(message._printed),
    of(message._printed, origins=[None, None]),
    shown_by(_moves, MovePlan),
    of(move_output.move_table),
    of(move_output.mapping_table),
    of(queue.segment_table),
    shown_by(topic.list_topics, [sample(TopicSummary)] * 2, everything=False),
    shown_by(topic.route, _route(), topic=TOPIC),
    of(topic._host_table),
    of(topic._logical_parts),
    of(topic._queue_table),
    of(topic._change_table),
    of(archive_job.to_report),
    of(audit_job.to_report),
    of(backfill.to_report),
    of(convert_job.to_report),
    of(stats_job.to_report),
    _index,
    _profiles,
]


class Terminal(io.StringIO):
    """Standard output of a person."""

    def isatty(self) -> bool:
        """Be one."""
        return True


def on_terminal(parts: Sequence[Printable], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the lines that a terminal of 80 columns shows."""
    for name, value in {"COLUMNS": str(WIDTH), "LINES": "50", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", Terminal())
    print_all(parts)
    text = sys.stdout.getvalue()  # type: ignore[attr-defined]
    return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_table_fits_and_breaks_nothing(case: Callable[[], list[Printable]], monkeypatch: pytest.MonkeyPatch):
    """No line is longer than the terminal, no word is broken, and every id that is shown is whole."""
    parts = case()
    lines = on_terminal(parts, monkeypatch)

    assert any(isinstance(part, tables.Table) and part.rows for part in parts)
    assert [line for line in lines if len(line) > WIDTH] == []
    for part in parts:
        if isinstance(part, tables.Table):
            assert_unbroken(part, on_terminal([part], monkeypatch))


def test_names_of_options_stay_whole_beside_long_values(monkeypatch: pytest.MonkeyPatch):
    """A reader looks them up and types them."""
    settings = dict.fromkeys(broker_keys._SETTINGS, "/var/lib/holdfast/production/eu-west-1/broker-07/messages")
    described = msgspec.structs.replace(sample(BrokerDescription), config=settings)

    text = "\n".join(on_terminal(shown_by(broker.describe, [described], broker=BROKER)(), monkeypatch))

    names = {word for meaning in broker_keys._SETTINGS.values() for word in meaning.split() if "_" in word}
    assert {name for name in names if name not in text} == set()


def assert_unbroken(table: tables.Table, lines: list[str]) -> None:
    """Check that each word that is shown is a word of a cell, or marked as shortened; ids are whole."""
    cells = [tables.cell_text(cell) for row in table.rows for cell in row]
    headings = [column.heading for column in table.columns]
    known = {word for text in [*cells, *headings, table.title, table.empty] for word in text.split()}
    shown = itertools.takewhile(lambda line: not line.startswith("not shown: "), lines)
    for word in " ".join(shown).split():
        head, mark, tail = word.partition("…")
        assert mark or word in known, f"{word} is a part of a word"
        assert not mark or not any(each.startswith(head) and each.endswith(tail) for each in WHOLE), word


def builders() -> Iterator[str]:
    """Yield every function of the command line and of the pipeline that makes a table."""
    for path in [*(SOURCE / "cli").rglob("*.py"), *(SOURCE / "pipeline").rglob("*.py")]:
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef) and any(_is_table(node) for node in ast.walk(function)):
                yield f"{path.stem}.{function.name}"


def _is_table(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in {"Table", "tables.Table"}


def test_every_table_has_a_case():
    """Those of a report are made by one function for all of it."""
    by_another = {"move_output.show_plan", "index.show_report", "profile.list_profiles", "group._lag_table"}
    covered = {case.__name__ for case in CASES} | by_another
    by_report = {"stats_job._hot_table"}

    assert set(builders()) - covered - by_report == set()
