"""Two scripted name servers and a broker that keep users and rules, each for itself."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from tests.support.cluster.scripted import Reply, ScriptedAccess, ScriptedRequest

from holdfast.model.access.directory import Directory, Record
from holdfast.model.access.refusal import DirectoryRefused
from holdfast.model.access.rule import ResourcePattern
from holdfast.model.errors import BrokerRefused
from holdfast.wire.access.bodies import (
    decode_rules,
    decode_user,
    encode_rule_lists,
    encode_rules,
    encode_users,
    parse_subject,
)
from holdfast.wire.frames.codes import RequestCode

SERVERS = ("ns:1", "ns:2")
NOW_MS = 1000


@dataclass
class ScriptedUsers(ScriptedAccess):
    """What each server has is in `directories`; those that are not there know no users."""

    directories: dict[str, Directory] = field(default_factory=lambda: {name: Directory() for name in (*SERVERS, "a:1")})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.on(RequestCode.AUTH_CREATE_USER, self._changing(self._create))
        self.on(RequestCode.AUTH_UPDATE_USER, self._changing(self._update))
        self.on(
            RequestCode.AUTH_DELETE_USER,
            self._changing(lambda directory, request: directory.delete_user(request.fields["username"], NOW_MS)),
        )
        self.on(RequestCode.AUTH_CREATE_ACL, self._changing(self._put))
        self.on(RequestCode.AUTH_DELETE_ACL, self._changing(self._delete))
        self.on(RequestCode.AUTH_LIST_USER, self._reading(self._list_users))
        self.on(RequestCode.AUTH_LIST_ACL, self._reading(self._list_rules))
        self.on(RequestCode.AUTH_GET_ACL, self._reading(self._get_rules))

    @property
    def name_servers(self) -> tuple[str, ...]:
        """Two of them."""
        return SERVERS

    async def __aenter__(self) -> Self:
        """Need no connection."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Have none to close."""

    async def invoke_name_server(self, code: RequestCode, header: object = None, body: bytes = b"") -> object:
        """Answer as the first name server that is alive."""
        alive = next((name for name in SERVERS if name not in self.dead), SERVERS[0])
        return await self.invoke(alive, code, header, body)  # type: ignore[arg-type]

    def _changing(self, change: Callable[[Directory, ScriptedRequest], list[Record]]) -> Callable[..., Reply]:
        def handle(request: ScriptedRequest) -> Reply:
            if request.address not in self.directories:
                return 3
            try:
                change(self.directories[request.address], request)
            except DirectoryRefused as refused:
                return BrokerRefused(refused.code, str(refused), address=request.address)
            return b""

        return handle

    def _reading(self, read: Callable[[Directory, ScriptedRequest], bytes]) -> Callable[..., Reply]:
        return lambda request: (
            read(self.directories[request.address], request) if request.address in self.directories else 3
        )

    def _create(self, directory: Directory, request: ScriptedRequest) -> list[Record]:
        return directory.create_user(decode_user(request.body).to_user(request.fields["username"]), NOW_MS)

    def _update(self, directory: Directory, request: ScriptedRequest) -> list[Record]:
        body = decode_user(request.body)
        keeps_old = {"true": True, "false": False}.get(request.fields.get("hf.keepOld", ""))
        return directory.update_user(
            request.fields["username"],
            NOW_MS,
            secret=body.password,
            keeps_old=keeps_old,
            kind=body.kind,
            is_enabled=body.is_enabled,
        )

    def _put(self, directory: Directory, request: ScriptedRequest) -> list[Record]:
        return directory.put_rules(
            parse_subject(request.fields["subject"]), decode_rules(request.body).to_rules(), NOW_MS
        )

    def _delete(self, directory: Directory, request: ScriptedRequest) -> list[Record]:
        resource = request.fields.get("resource")
        return directory.delete_rules(
            parse_subject(request.fields["subject"]),
            NOW_MS,
            resource=ResourcePattern.parse(resource) if resource else None,
        )

    def _list_users(self, directory: Directory, request: ScriptedRequest) -> bytes:
        part = request.fields.get("filter", "")
        return encode_users([user for user in directory.users if part in user.name], has_secret=False)

    def _list_rules(self, directory: Directory, request: ScriptedRequest) -> bytes:
        part = request.fields.get("resourceFilter", "")
        return encode_rule_lists(
            (user.name, [rule for rule in directory.rules_of(user.name) if part in str(rule.resource)])
            for user in directory.users
        )

    def _get_rules(self, directory: Directory, request: ScriptedRequest) -> bytes:
        name = parse_subject(request.fields["subject"])
        return encode_rules(name, directory.rules_of(name))
