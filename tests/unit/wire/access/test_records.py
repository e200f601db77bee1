"""The records of a directory, in its file and between servers."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.access.directory import RULES_MAX, VERSION_MAX, Directory, Record
from holdfast.model.access.rule import SOURCES_MAX, Effect, ResourcePattern, Rule, Tier, parse_actions
from holdfast.model.access.source_address import parse_source
from holdfast.model.access.user import CLUSTER_USER, User, UserKind
from holdfast.model.errors import RemoteProtocolError
from holdfast.wire.access.records import SyncAccessFields, decode_records, encode_records
from holdfast.wire.frames.fields import from_fields, to_fields

ALICE = User("alice", ("open-sesame", "old-sesame"), UserKind.SUPER, is_enabled=False)
RULES = (
    Rule(ResourcePattern.parse("Topic:t*"), parse_actions(["Pub", "Sub"]), sources=(parse_source("10.0.0.0/8"),)),
    Rule(ResourcePattern.parse("*"), parse_actions(["All"]), Effect.DENY, tier=Tier.DEFAULT),
)
RECORDS = [
    Record("rules/alice", 18, RULES),
    Record("rules/bob", 3, None),
    Record("user/alice", VERSION_MAX, ALICE),
    Record("user/bob", 2, None),
    Record("user/team/app", 2, User("team/app", ("open-sesame",))),
]


def test_records_survive_their_way():
    """Deleted ones, too. Two directories with them are equal."""
    decoded = decode_records(encode_records(RECORDS))

    assert decoded == RECORDS
    assert Directory(decoded).digest == Directory(RECORDS).digest
    assert decode_records(encode_records([])) == []


def test_the_file_can_be_read_by_people():
    """The format of other versions must stay readable: this is its text."""
    assert json.loads(encode_records(RECORDS[:4])) == {
        "records": [
            {
                "key": "rules/alice",
                "version": 18,
                "rules": [
                    {
                        "resource": "Topic:t*",
                        "actions": ["Pub", "Sub"],
                        "effect": "Allow",
                        "sources": ["10.0.0.0/8"],
                    },
                    {"resource": "*", "actions": ["All"], "effect": "Deny", "tier": "Default"},
                ],
            },
            {"key": "rules/bob", "version": 3},
            {
                "key": "user/alice",
                "version": VERSION_MAX,
                "user": {"secrets": ["open-sesame", "old-sesame"], "kind": "Super", "enabled": False},
            },
            {"key": "user/bob", "version": 2},
        ]
    }


USER = {"secrets": ["open-sesame"], "kind": "Normal", "enabled": True}
RULE = {"resource": "*", "actions": ["Sub"], "effect": "Allow"}


@pytest.mark.parametrize(
    "record",
    [
        {"version": 1, "user": USER},
        {"key": "user/a", "user": USER},
        {"key": "user/a", "version": 0},
        {"key": "user/a", "version": VERSION_MAX + 1},
        {"key": "user/a", "version": "1"},
        {"key": "user/", "version": 1},
        {"key": "user", "version": 1},
        {"key": "other/a", "version": 1},
        {"key": "user/a b", "version": 1},
        {"key": f"user/{CLUSTER_USER}", "version": 1, "user": USER},
        {"key": f"rules/{CLUSTER_USER}", "version": 1},
        {"key": "user/a", "version": 1, "rules": [RULE]},
        {"key": "rules/a", "version": 1, "user": USER},
        {"key": "user/a", "version": 1, "user": USER, "rules": [RULE]},
        {"key": "user/a", "version": 1, "user": USER | {"secrets": []}},
        {"key": "user/a", "version": 1, "user": USER | {"secrets": ["open-sesame"] * 3}},
        {"key": "user/a", "version": 1, "user": USER | {"secrets": ["sesame"]}},
        {"key": "user/a", "version": 1, "user": USER | {"secrets": "open-sesame"}},
        {"key": "user/a", "version": 1, "user": USER | {"kind": "Root"}},
        {"key": "rules/a", "version": 1, "rules": [RULE | {"resource": "Topic"}]},
        {"key": "rules/a", "version": 1, "rules": [RULE | {"actions": []}]},
        {"key": "rules/a", "version": 1, "rules": [RULE | {"effect": "Perhaps"}]},
        {"key": "rules/a", "version": 1, "rules": [RULE | {"sources": ["x"]}]},
        {"key": "rules/a", "version": 1, "rules": [RULE | {"sources": ["::1"] * (SOURCES_MAX + 1)}]},
        {"key": "rules/a", "version": 1, "rules": [RULE] * (RULES_MAX + 1)},
    ],
)
def test_a_record_that_could_not_be_made_here_is_refused(record: dict[str, object]):
    """A file may be damaged, and a peer may be another program. The error may be logged."""
    data = json.dumps({"records": [record]}).encode()

    with pytest.raises(RemoteProtocolError, match="the records of users and rules cannot be read") as error:
        decode_records(data)

    assert "sesame" not in str(error.value)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"{", b'{"records":{}}', b"\xff", b'{"records":[[' + b"[" * 5000])
def test_other_bytes_are_refused(data: bytes):
    """Not with another error."""
    with pytest.raises(RemoteProtocolError, match="cannot be read"):
        decode_records(data)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "records",
                        "key",
                        "version",
                        "user",
                        "rules",
                        "secrets",
                        "resource",
                        "actions",
                        "effect",
                        "sources",
                    ]
                ),
                inner,
            )
        ),
    )
)
def test_no_json_breaks_the_decoder(value: object):
    """It returns records, or it refuses."""
    with contextlib.suppress(RemoteProtocolError):
        assert len(decode_records(json.dumps({"records": [value]}).encode())) == 1


def test_the_header_names_the_digest():
    """In both directions."""
    assert to_fields(SyncAccessFields("abc")) == {"hf.digest": "abc"}
    assert from_fields(SyncAccessFields, {}) == SyncAccessFields("")
