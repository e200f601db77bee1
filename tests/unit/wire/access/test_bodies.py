"""Headers and bodies of the requests that manage users and rules."""

import json
from collections.abc import Callable

import pytest

from holdfast.model.access.directory import RULES_MAX
from holdfast.model.access.refusal import DirectoryRefused
from holdfast.model.access.rule import ALL_ACTIONS, Effect, ResourcePattern, Rule, Tier, parse_actions
from holdfast.model.access.source_address import parse_source
from holdfast.model.access.user import User, UserKind
from holdfast.model.errors import RemoteProtocolError
from holdfast.wire.access import bodies
from holdfast.wire.access.bodies import (
    DeleteRulesFields,
    ListRulesFields,
    ListUsersFields,
    RulesBody,
    SubjectFields,
    UpdateUserFields,
    UserBody,
    UserNameFields,
    decode_rule_lists,
    decode_rules,
    decode_user,
    decode_users,
    encode_rule_lists,
    encode_rules,
    encode_user,
    encode_user_change,
    encode_users,
    parse_subject,
    parse_tier,
    subject_of,
)
from holdfast.wire.frames.fields import from_fields

ALICE = User("alice", ("open-sesame", "old-sesame"), UserKind.SUPER, is_enabled=False)
RULES = (
    Rule(
        ResourcePattern.parse("Topic:t*"),
        parse_actions(["Pub", "Sub"]),
        sources=(parse_source("10.0.0.0/8"),),
    ),
    Rule(ResourcePattern.parse("*"), ALL_ACTIONS, Effect.DENY, tier=Tier.DEFAULT),
)
ALICES_RULES = {
    "subject": "User:alice",
    "policies": [
        {
            "policyType": "Custom",
            "entries": [
                {
                    "resource": "Topic:t*",
                    "actions": ["Pub", "Sub"],
                    "sourceIps": ["10.0.0.0/8"],
                    "decision": "Allow",
                }
            ],
        },
        {"policyType": "Default", "entries": [{"resource": "*", "actions": ["All"], "decision": "Deny"}]},
    ],
}


def an_entry(**changes: object) -> bytes:
    """Return a body with one rule."""
    entry = {"resource": "Topic:t", "actions": ["Pub"], "decision": "Allow"} | changes
    return json.dumps({"policies": [{"entries": [entry]}]}).encode()


def test_a_user_has_the_fields_of_rocketmq():
    """The secret is there only if the caller may see it, and only the newest one."""
    body = {"username": "alice", "userType": "Super", "userStatus": "disable"}

    assert json.loads(encode_user(ALICE, has_secret=True)) == body | {"password": "open-sesame"}
    assert json.loads(encode_user(ALICE, has_secret=False)) == body
    assert json.loads(encode_users([ALICE], has_secret=True)) == [body | {"password": "open-sesame"}]
    assert b"sesame" not in encode_users([ALICE], has_secret=False)
    assert encode_users([], has_secret=True) == b""


def test_a_user_is_read():
    """With RocketMQ's defaults, and words in any case."""
    body = decode_user(b'{"password":"open-sesame","userType":"super","userStatus":"DISABLE"}')

    assert body.to_user("alice") == User("alice", ("open-sesame",), UserKind.SUPER, is_enabled=False)
    assert UserBody(password="open-sesame").to_user("bob") == User("bob", ("open-sesame",))
    assert UserBody().to_user("bob").secrets == ("",), "the directory refuses it"
    assert (UserBody().kind, UserBody().is_enabled) == (None, None)
    assert decode_users(encode_users([ALICE], has_secret=False))[0].username == "alice"
    assert decode_users(b"") == []


@pytest.mark.parametrize(("body", "word"), [({"userType": "Supper"}, "Supper"), ({"userStatus": "off"}, "off")])
def test_an_unknown_word_is_refused(body: dict[str, str], word: str):
    """It names the words that are known."""
    with pytest.raises(DirectoryRefused, match=f"'{word}' is unknown: write (Super or Normal|enable or disable)"):
        decode_user(json.dumps(body).encode()).to_user("alice")


def test_rules_have_the_fields_of_rocketmq():
    """One policy for each tier that has rules."""
    body = encode_rules("alice", RULES)

    assert json.loads(body) == ALICES_RULES
    assert decode_rules(body).subject == "User:alice"
    assert decode_rules(body).to_rules() == list(RULES)
    assert json.loads(encode_rule_lists([("alice", RULES), ("bob", ())])) == [ALICES_RULES]
    assert [each.to_rules() for each in decode_rule_lists(encode_rule_lists([("alice", RULES)]))] == [list(RULES)]


def test_no_rules_have_no_body():
    """As RocketMQ answers."""
    assert encode_rules("alice", ()) == b""
    assert encode_rule_lists([("alice", ())]) == b""
    assert decode_rule_lists(b"") == []


def test_a_policy_without_a_type_is_custom():
    """What mqadmin sends."""
    (rule,) = decode_rules(an_entry(sourceIps=[])).to_rules()

    assert str(rule) == "Allow Topic:t Pub"
    assert rule.tier is Tier.CUSTOM
    assert (parse_tier(None), parse_tier(""), parse_tier("default")) == (Tier.CUSTOM, Tier.CUSTOM, Tier.DEFAULT)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{}", "The policies is empty"),
        (b'{"policies":[]}', "The policies is empty"),
        (b'{"policies":[{}]}', "The policy entries is empty"),
        (an_entry(resource=None), "The resource is null"),
        (an_entry(resource="Foo:t"), "The resource is null"),
        (an_entry(actions=[]), "The actions is empty"),
        (an_entry(actions=None), "The actions is empty"),
        (an_entry(actions=["Any"]), "The actions can not be Any"),
        (an_entry(actions=["Snd"]), "'Snd' is unknown"),
        (an_entry(decision=None), "The decision is null or illegal"),
        (an_entry(decision="Maybe"), "'Maybe' is unknown: write Allow or Deny"),
        (an_entry(sourceIps=[""]), "The source ip is empty"),
        (an_entry(sourceIps=["10.0.*.*"]), "The source ip is invalid"),
        (
            b'{"policies":[{"policyType":"Other","entries":[{"decision":"Deny","resource":"*","actions":["All"]}]}]}',
            "'Other'",
        ),
        (json.dumps({"policies": [{"entries": [{}] * (RULES_MAX + 1)}]}).encode(), "257 rules are given, at most 256"),
    ],
)
def test_impossible_rules_are_refused(body: bytes, why: str):
    """With RocketMQ's texts where it has one."""
    with pytest.raises(DirectoryRefused, match=why):
        decode_rules(body).to_rules()


@pytest.mark.parametrize(
    ("decode", "body"),
    [
        *((decode_rules, body) for body in (b"", b"[]", b"{", b'{"policies":{}}', b'{"policies":[{"entries":[1]}]}')),
        *((decode_user, body) for body in (b"", b"[]", b'{"password":{}}', b"\xff")),
        *((decode, body) for decode in (decode_users, decode_rule_lists) for body in (b"{}", b"[1]", b"[", b"\xff")),
    ],
)
def test_a_body_of_another_shape_is_refused(decode: Callable[[bytes], object], body: bytes):
    """It may come from any client."""
    with pytest.raises(RemoteProtocolError):
        decode(body)


@pytest.mark.parametrize(
    "body", [b'{"password":["open-sesame"]}', b'{"password":"open-sesame"', b'{"password":"open-sesame\xff"}']
)
def test_no_error_shows_a_password(body: bytes):
    """It may be logged; so may a body that was read."""
    with pytest.raises(RemoteProtocolError) as error:
        decode_user(body)

    assert "sesame" not in str(error.value)
    assert "sesame" not in f"{UserBody('alice', 'open-sesame')!r} {[UserBody('alice', 'open-sesame')]}"


def test_a_subject_is_a_user():
    """Types have no case, names do."""
    assert parse_subject(subject_of("alice")) == "alice"
    assert parse_subject("user:Alice:b") == "Alice:b"


@pytest.mark.parametrize(
    ("subject", "why"),
    [
        (None, "The subject is null"),
        (" ", "The subject is null"),
        ("alice", "'alice' is no user"),
        ("User:", "is no user"),
    ],
)
def test_another_subject_is_refused(subject: str | None, why: str):
    """RocketMQ knows only users, too."""
    with pytest.raises(DirectoryRefused, match=why):
        parse_subject(subject)


def test_headers_may_lack_every_field():
    """The handler answers with a text of RocketMQ instead."""
    assert from_fields(UserNameFields, {}) == UserNameFields("")
    assert from_fields(UpdateUserFields, {"username": "a", "hf.keepOld": "true"}) == UpdateUserFields(
        "a", keeps_old=True
    )
    assert from_fields(UpdateUserFields, {"username": "a"}) == UpdateUserFields("a", keeps_old=None)
    assert from_fields(ListUsersFields, {"filter": "x"}) == ListUsersFields("x")
    assert from_fields(SubjectFields, {}) == SubjectFields("")
    assert from_fields(DeleteRulesFields, {"policyType": "Custom", "resource": "*"}) == DeleteRulesFields(
        "", "Custom", "*"
    )
    assert from_fields(ListRulesFields, {"subjectFilter": "a"}) == ListRulesFields("a", "")


def test_bodies_of_requests_are_made_from_the_same_values():
    """For our own tools."""
    assert RulesBody("User:alice", bodies.decode_rules(encode_rules("alice", RULES)).policies).to_rules() == list(RULES)


def test_a_change_of_a_user_has_only_what_changes() -> None:
    """What is absent stays unchanged."""
    assert json.loads(encode_user_change("alice", is_enabled=False)) == {"username": "alice", "userStatus": "disable"}
    changed = decode_user(encode_user_change("alice", secret="new-secret", kind=UserKind.SUPER))
    assert (changed.password, changed.kind, changed.is_enabled) == ("new-secret", UserKind.SUPER, None)
