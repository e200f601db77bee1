"""Answers administrators who manage users: 3001 to 3005, as RocketMQ 5 does.

Secrets are returned to Super users and to servers only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.access.directory_store import AccessStore
from holdfast.access.sync_requests import Identify
from holdfast.machine.component import Component
from holdfast.machine.request import Answer, Refusal, Request
from holdfast.machine.turn import Turn
from holdfast.model.access.identity import IdentityKind
from holdfast.model.access.refusal import DirectoryRefused
from holdfast.model.access.user import User
from holdfast.wire.access.bodies import (
    ListUsersFields,
    UpdateUserFields,
    UserNameFields,
    decode_user,
    encode_user,
    encode_users,
)
from holdfast.wire.frames.codes import RequestCode, ResponseCode

Handler = Callable[[Request], Answer]
Guard = Callable[[Request], Refusal | None]


class UserRequests(Component):
    """Creates, changes, deletes and returns users.

    Args:
        store: The users and rules of this role.
        identify: Returns who sends a request. It does so with access control off, too: the rules for Super users
            always apply, so that none is planted for the time when it is on.
        find_user: Returns a user of the directory or of a followed ACL 1.0 file.
        guard: Returns why a change is refused while access control is off, or None.
        turn: The turn of the role.
    """

    def __init__(
        self, store: AccessStore, identify: Identify, find_user: Callable[[str], User | None], guard: Guard, turn: Turn
    ) -> None:
        self._store = store
        self._guard = guard
        self._identify = identify
        self._find_user = find_user
        self._turn = turn

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers of this component, by request code."""
        return {
            RequestCode.AUTH_CREATE_USER: refuse_as_upstream(guarded(self._create, self._guard)),
            RequestCode.AUTH_UPDATE_USER: refuse_as_upstream(guarded(self._update, self._guard)),
            RequestCode.AUTH_DELETE_USER: refuse_as_upstream(guarded(self._delete, self._guard)),
            RequestCode.AUTH_GET_USER: refuse_as_upstream(self._get),
            RequestCode.AUTH_LIST_USER: refuse_as_upstream(self._list),
        }

    def _create(self, request: Request) -> Answer:
        name, body = request.header_as(UserNameFields).username, decode_user(request.command.body)
        user = body.to_user(name)
        directory = self._store.directory
        directory.check_caller(self._caller(request), name, user.kind)
        return self._store.apply(request, directory.create_user(user, self._turn.now_ms))

    def _update(self, request: Request) -> Answer:
        fields, body = request.header_as(UpdateUserFields), decode_user(request.command.body)
        directory = self._store.directory
        directory.check_caller(self._caller(request), fields.username, body.kind)
        changed = directory.update_user(
            fields.username,
            self._turn.now_ms,
            secret=body.password,
            keeps_old=fields.keeps_old,
            kind=body.kind,
            is_enabled=body.is_enabled,
        )
        return self._store.apply(request, changed)

    def _delete(self, request: Request) -> Answer:
        name, directory = request.header_as(UserNameFields).username, self._store.directory
        directory.check_caller(self._caller(request), name)
        return self._store.apply(request, directory.delete_user(name, self._turn.now_ms))

    def _get(self, request: Request) -> Answer:
        name = request.header_as(UserNameFields).username
        if not name.strip():
            raise DirectoryRefused("The username is blank", ResponseCode.INVALID_PARAMETER)
        user = self._store.directory.find_user(name)
        if user is None:
            return request.answer()
        return request.answer(body=encode_user(user, has_secret=self._may_see_secrets(request)))

    def _list(self, request: Request) -> Answer:
        part = request.header_as(ListUsersFields).filter
        users = [user for user in self._store.directory.users if part in user.name]
        return request.answer(body=encode_users(users, has_secret=self._may_see_secrets(request)))

    def _caller(self, request: Request) -> str | None:
        """Return the user who sends *request*, empty if that is not proven; None for a server or a Super user."""
        sender = self._identify(request.channel, request.command)
        if sender.kind is IdentityKind.CLUSTER:
            return None
        user = self._find_user(sender.user) if sender.kind is IdentityKind.USER else None
        if user is None:
            return ""
        return None if user.is_super else user.name

    def _may_see_secrets(self, request: Request) -> bool:
        return self._caller(request) is None


def guarded(handler: Handler, guard: Guard) -> Handler:
    """Wrap *handler* so that it runs only if *guard* does not refuse the request."""
    return lambda request: guard(request) or handler(request)


def refuse_as_upstream(handler: Handler) -> Handler:
    """Wrap *handler* so that a refused change is answered with RocketMQ's code and text."""

    def handle(request: Request) -> Answer:
        try:
            return handler(request)
        except DirectoryRefused as refused:
            return Refusal(ResponseCode(refused.code), str(refused))

    return handle
