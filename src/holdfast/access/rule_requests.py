"""Answers administrators who manage rules: 3006 to 3010, as RocketMQ 5 does."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.access.directory_store import AccessStore
from holdfast.access.user_requests import Guard, Handler, guarded, refuse_as_upstream
from holdfast.machine.component import Component
from holdfast.machine.request import Answer, Request
from holdfast.machine.turn import Turn
from holdfast.model.access.rule import ResourcePattern
from holdfast.wire.access.bodies import (
    DeleteRulesFields,
    ListRulesFields,
    SubjectFields,
    decode_rules,
    encode_rule_lists,
    encode_rules,
    parse_subject,
    parse_tier,
    subject_of,
)
from holdfast.wire.frames.codes import RequestCode


class RuleRequests(Component):
    """Adds, deletes and returns rules.

    Args:
        store: The users and rules of this role.
        guard: Returns why a change is refused while access control is off, or None.
        turn: The turn of the role.
    """

    def __init__(self, store: AccessStore, guard: Guard, turn: Turn) -> None:
        self._store = store
        self._guard = guard
        self._turn = turn

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers of this component, by request code."""
        put = refuse_as_upstream(guarded(self._put, self._guard))
        return {
            RequestCode.AUTH_CREATE_ACL: put,
            RequestCode.AUTH_UPDATE_ACL: put,
            RequestCode.AUTH_DELETE_ACL: refuse_as_upstream(guarded(self._delete, self._guard)),
            RequestCode.AUTH_GET_ACL: refuse_as_upstream(self._get),
            RequestCode.AUTH_LIST_ACL: refuse_as_upstream(self._list),
        }

    def _put(self, request: Request) -> Answer:
        body = decode_rules(request.command.body)
        # As in RocketMQ, the subject in the body counts more than that in the header.
        name = parse_subject(body.subject or request.header_as(SubjectFields).subject)
        return self._store.apply(request, self._store.directory.put_rules(name, body.to_rules(), self._turn.now_ms))

    def _delete(self, request: Request) -> Answer:
        fields = request.header_as(DeleteRulesFields)
        resource = ResourcePattern.parse(fields.resource) if fields.resource else None
        changed = self._store.directory.delete_rules(
            parse_subject(fields.subject), self._turn.now_ms, resource=resource, tier=parse_tier(fields.policy_type)
        )
        return self._store.apply(request, changed)

    def _get(self, request: Request) -> Answer:
        name = parse_subject(request.header_as(SubjectFields).subject)
        return request.answer(body=encode_rules(name, self._store.directory.rules_of(name)))

    def _list(self, request: Request) -> Answer:
        fields, directory = request.header_as(ListRulesFields), self._store.directory
        return request.answer(
            body=encode_rule_lists(
                (
                    user.name,
                    [rule for rule in directory.rules_of(user.name) if fields.resource_filter in str(rule.resource)],
                )
                for user in directory.users
                if fields.subject_filter in subject_of(user.name)
            )
        )
