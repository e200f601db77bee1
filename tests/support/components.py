"""Builds one component of a role alone: with the collaborators that its constructor names, and no other.

    alone = Alone("broker")
    queue_locks = alone.build(QueueLocks)

Collaborators are real, and built in the same way. What is no class of a role is supplied here by its type: options, an
empty store, a simulated disk, the turn. A callback does nothing, and returns an empty value of its type.
"""

from __future__ import annotations

import collections.abc
import importlib
import inspect
import pkgutil
import random
import types
import typing
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Literal, TypeVar

import msgspec
from tests.support.cluster.machine import START_MS

import holdfast.access
import holdfast.broker
import holdfast.nameserver
from holdfast.access.authority import Records
from holdfast.access.directory_store import AccessStore
from holdfast.access.role_secrets import RoleSecrets
from holdfast.broker.flow.component import MasterComponent
from holdfast.broker.flow.reply_gate import Replicas
from holdfast.broker.options import BrokerOptions
from holdfast.broker.replication.ha_master import HaMaster
from holdfast.broker.service import store_options
from holdfast.machine.component import Component
from holdfast.machine.events import ChannelId
from holdfast.machine.pressure import MemoryPressure
from holdfast.machine.readings import Readings
from holdfast.machine.request import Refusal, Request
from holdfast.machine.turn import Turn
from holdfast.model.access.identity import ANONYMOUS, Identity
from holdfast.model.delay import DelayLevels
from holdfast.model.errors import MappingRefused, RemoteProtocolError
from holdfast.nameserver.options import NameServerOptions
from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.disk import Disk
from holdfast.store.message_store import MessageStore
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import BadField
from holdfast.wire.frames.host import pack_host
from holdfast.wire.requests.send import SendFields
from holdfast.wire.requests.table import BROKER_REQUESTS, NAME_SERVER_REQUESTS, RequestSpec

Role = Literal["broker", "namesrv"]

_T = TypeVar("_T")

ACL_FILE = "plain_acl.yml"

_PACKAGES = (holdfast.access, holdfast.broker, holdfast.nameserver)
_NAMED: dict[str, object] = {
    "AclFollower.name": ACL_FILE,
    "boot": START_MS,
    "cached_size_max": 1 << 20,
    "parked_max": 100,
    "size_max": 1 << 20,
    "is_enabled": True,
    "is_required": True,
    "namesrv": ("10.0.0.100:9876",),
    "trusted": (),
    "store_host": pack_host("127.0.0.1:10911"),
    "cluster": "DefaultCluster",
}
"""Values of parameters whose types say nothing, by name, or by class and name."""
_IMPLEMENTATIONS: dict[type, type] = {Records: AccessStore, Replicas: HaMaster}
"""The collaborators that a constructor names by a protocol only."""

_LONG_SEND_NAMES = {
    "producerGroup": "T",
    "topic": "T",
    "defaultTopic": "T",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "0",
    "flag": "0",
}
"""The required fields of a send in its first version, whose names the header type does not have."""


class Alone:
    """The collaborators of one component.

    Args:
        role: Whose component it is.
        disk: Its files; by default there are none.
        options: Options of the role that differ from the defaults.
    """

    def __init__(self, role: Role, disk: SimDisk | None = None, **options: object) -> None:
        self.role = role
        self.disk = disk or SimDisk()
        self.turn = Turn(START_MS)
        self._options = {"namesrv": ("10.0.0.100:9876",), "log_file_size": 1 << 20, **options}
        self.broker_options = BrokerOptions(**self._options)  # type: ignore[arg-type]
        self._built: dict[type, object] = {
            BrokerOptions: self.broker_options,
            NameServerOptions: NameServerOptions(),
            Turn: self.turn,
            Disk: self.disk,
            random.Random: random.Random(7),
            DelayLevels: DelayLevels(self.broker_options.delay_levels),
            MemoryPressure: MemoryPressure(),
            Readings: Readings(),
            RoleSecrets: RoleSecrets.none(random.Random(7)),
            str: role,
        }

    @property
    def table(self) -> typing.Mapping[int, RequestSpec]:
        """The requests of the role."""
        return BROKER_REQUESTS if self.role == "broker" else NAME_SERVER_REQUESTS

    def components(self) -> list[Component]:
        """Return all components that were built here."""
        return [built for built in self._built.values() if isinstance(built, Component)]

    def build(self, kind: type[_T]) -> _T:
        """Return the only *kind* here, with its collaborators."""
        if kind not in self._built:
            if kind is MessageStore:
                self._built[kind] = MessageStore.open(self.disk, store_options(self.broker_options), START_MS)
            else:
                self._built[kind] = kind(**dict(self._arguments(kind)))
        return typing.cast("_T", self._built[kind])

    def _arguments(self, kind: type) -> Iterator[tuple[str, object]]:
        # A struct has its types in its fields, any other class in its constructor.
        hints = typing.get_type_hints(kind if issubclass(kind, msgspec.Struct) else kind.__init__)
        for parameter in inspect.signature(kind).parameters.values():
            hint = hints[parameter.name]
            named = _NAMED.get(f"{kind.__name__}.{parameter.name}", _NAMED.get(parameter.name))
            if named is not None:
                yield parameter.name, named
            elif (value := self._find(hint)) is not None:
                yield parameter.name, value
            else:
                assert parameter.default is not inspect.Parameter.empty, f"no {parameter.name}: {hint} for {kind}"

    def _find(self, hint: Any) -> object | None:
        """Return a value of the type *hint*; None if the default of the parameter has to do."""
        origin = typing.get_origin(hint)
        if origin in {typing.Union, types.UnionType}:
            return self._find(typing.get_args(hint)[0])
        if origin is collections.abc.Callable:
            return _silent(typing.get_args(hint)[-1])
        if origin is collections.abc.Container:
            return frozenset[str]()
        kind = _IMPLEMENTATIONS.get(hint, hint if origin is None else origin)
        if kind in self._built:
            return self._built[kind]
        is_built_here = inspect.isclass(kind) and kind.__module__.startswith("holdfast.")
        return self.build(kind) if is_built_here and not getattr(kind, "_is_protocol", False) else None


def _silent(result: Any) -> Callable[..., object]:
    """Return a callback that only returns an empty value of the type *result*."""
    if typing.get_origin(result) is Coroutine:
        inner = _empty(typing.get_args(result)[2])

        async def procedure(*_arguments: object) -> object:
            return inner

        return procedure
    return lambda *_arguments: _empty(result)


def _empty(kind: Any) -> object:
    if kind is Identity:
        return ANONYMOUS
    if typing.get_origin(kind) is dict or kind in {bool, int}:
        return kind()
    return None


def find_components() -> dict[str, type[Component]]:
    """Return every class of a component that a role may have, by name."""
    for package in _PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    return {kind.__name__: kind for kind in _subclasses(Component) if kind is not MasterComponent}


def _subclasses(kind: type) -> Iterator[type]:
    for child in kind.__subclasses__():
        if child.__module__.startswith("holdfast."):
            yield child
            yield from _subclasses(child)


def a_minimal_request(spec: RequestSpec) -> Request:
    """Return a request of one kind with only the fields that it must have, and no body."""
    required = [field for field in msgspec.structs.fields(spec.header) if field.required]
    fields = {field.encode_name: _text_of(field.type) for field in required}
    if issubclass(spec.header, SendFields):
        fields |= _LONG_SEND_NAMES
    command = Command(code=spec.code, fields=fields)
    return Request(command=command, header=spec.decode(command), channel=ChannelId(1), peer="10.0.0.1:5000")


def _text_of(kind: Any) -> str:
    """Return the shortest text of a field of this type."""
    while typing.get_origin(kind) in {typing.Annotated, typing.Union, types.UnionType}:
        kind = typing.get_args(kind)[0]
    kind = getattr(kind, "__supertype__", kind)
    return {int: "0", bool: "false"}.get(kind, "T")


def outcome_of(component: Component, request: Request) -> str:
    """Return how a handler of a component that was built alone begins to answer: at once, later, or not at all."""
    try:
        answer = component.handlers()[request.command.code](request)
        if inspect.iscoroutine(answer):
            return _first_wait(answer)
    except (BadField, RemoteProtocolError):
        return "unreadable"
    except MappingRefused:
        return "mapping refused"
    return _describe(answer)


def _first_wait(procedure: Coroutine[Any, Any, Any]) -> str:
    """Run a procedure until it waits for something, and return for what, or its result."""
    try:
        wait = procedure.send(None)
    except StopIteration as end:
        return _describe(end.value)
    procedure.close()
    return f"waits: {type(wait).__name__}"


def _describe(answer: Command | Refusal | None) -> str:
    return "nothing yet" if answer is None else ResponseCode(answer.code).name
