"""The signature of a request, as clients of RocketMQ make it."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.access.credentials import Credentials
from holdfast.wire.access import signature
from holdfast.wire.access.signature import SIGNATURE, content, sign, verify, verify_fields
from holdfast.wire.frames.command import Command

GOLDEN = {
    "a": "p",
    "b": "t",
    "c": "TBW102",
    "d": "4",
    "e": "1",
    "f": "0",
    "g": "1",
    "h": "0",
    "i": "a\x01b\x02",
    "j": "0",
}
GOLDEN |= {"k": "false", "m": "false", "n": "bk"}
CREDENTIALS = Credentials("ak", "sk")
SECRET = b"sk"


def test_a_request_is_signed_as_java_does():
    """The signature was made by RocketMQ's own client."""
    signed = sign(GOLDEN, b"hi", CREDENTIALS)

    assert signed == GOLDEN | {"AccessKey": "ak", "Signature": "14NoMgXLcLSn3R4iUuuM203cyN0="}
    assert content(signed, b"hi") == b"akptTBW10241010a\x01b\x020falsefalsebkhi"
    assert verify_fields(signed, memoryview(b"hi"), SECRET)


def test_values_are_ordered_by_their_keys():
    """Capital letters first; beyond ASCII in the order of UTF-16, in which an emoji precedes the last letters."""
    assert content({"a": "1", "B": "2", "AccessKey": "ak", "Signature": "x"}, b"x") == b"ak21x"
    assert content({"\uffee": "1", "\U0001f600": "2", "_": "3", "a": "4", "Z": "5"}, b"") == b"53421"
    assert content({}, b"x") == b"x"
    assert content({"a": "1", "b": "2"}, b"", {"a"}) == b"2"


def test_a_token_is_signed_if_there_is_one():
    """Some installations need it."""
    signed = sign({"z": "1"}, b"", Credentials("ak", "sk", "token"))

    assert signed["SecurityToken"] == "token"
    assert content(signed, b"") == b"aktoken1"


@pytest.mark.parametrize(
    "change",
    [{"a": "q"}, {"new": "x"}, {"AccessKey": "other"}, {SIGNATURE: ""}, {SIGNATURE: "ü"}, {SIGNATURE: "A" * 28}],
)
def test_an_altered_request_is_refused(change: dict[str, str]):
    """Any value, also an added one."""
    signed = sign(GOLDEN, b"hi", CREDENTIALS)

    assert not verify_fields(signed | change, b"hi", SECRET)
    assert not verify_fields(signed, b"ho", SECRET)
    assert not verify_fields(signed, b"hi", b"other")


def test_a_request_without_a_signature_is_refused():
    """And so is one that was signed with nothing."""
    unsigned = sign(GOLDEN, b"", Credentials("ak", ""))

    assert not verify_fields(GOLDEN, b"", SECRET)
    assert not verify_fields(unsigned, b"", b"")
    assert not verify(Command(code=10, fields=unsigned), [])


def test_half_a_surrogate_pair_does_not_break_the_check():
    """Java signs a question mark in its place."""
    signed = sign({"a": "?"}, b"", CREDENTIALS) | {"a": "\ud800"}

    assert verify_fields(signed, b"", SECRET)
    assert not verify_fields(signed | {SIGNATURE: "\ud800"}, b"", SECRET)


def test_another_algorithm_is_refused():
    """RocketMQ names more of them, but no server accepts any."""
    digest = hmac.new(SECRET, content(GOLDEN, b""), hashlib.sha256).digest()

    assert not verify_fields(GOLDEN | {SIGNATURE: base64.b64encode(digest).decode()}, b"", SECRET)


def a_command(fields: dict[str, str], version: int = 479) -> Command:
    return Command(code=12, fields=fields, body=b"hi", version=version)


def test_each_of_several_secrets_is_accepted():
    """During a rotation there are two."""
    command = a_command(sign(GOLDEN, b"hi", CREDENTIALS))

    assert verify(command, [b"new", SECRET])
    assert not verify(command, [b"new", b"other"])


def test_a_signature_does_not_depend_on_those_before_it():
    """Neither on those with the same secret nor on how many other secrets were used since."""
    expected = {secret: base64.b64encode(hmac.digest(secret, b"hi", "sha1")).decode() for secret in (b"one", b"two")}
    others = [b"secret-%d" % number for number in range(1_100)]

    for secret in (b"one", b"one", b"two", *others, b"one", b"two"):
        wanted = expected.get(secret)
        assert verify_fields({SIGNATURE: wanted or expected[b"one"]}, b"hi", secret) is (wanted is not None)


def test_the_zone_may_be_added_after_signing():
    """Clients of RocketMQ 5 do so; others sign it."""
    zone = {"__ZONE_NAME": "z1", "__ZONE_MODE": "true"}
    signed = sign(GOLDEN, b"hi", CREDENTIALS)

    assert verify(a_command(signed | zone), [b"new", SECRET])
    assert verify(a_command(signed | {"__ZONE_NAME": "z1"}), [SECRET])
    assert verify(a_command(sign(GOLDEN | zone, b"hi", CREDENTIALS)), [SECRET])
    assert not verify(a_command(signed | zone | {"a": "q"}), [SECRET])
    assert not verify(a_command(signed | {"__ZONE_OTHER": "z1"}), [SECRET])


@pytest.mark.parametrize(("version", "is_accepted"), [(63, True), (399, True), (400, False), (479, False)])
def test_old_clients_do_not_sign_the_kind_of_a_query(version: int, is_accepted: bool):  # noqa: FBT001
    """Up to 4.9.3. Later ones do."""
    query = {"_UNIQUE_KEY_QUERY": "true"}
    signed = sign(GOLDEN, b"hi", CREDENTIALS)
    zone = {"__ZONE_NAME": "z1"}

    assert verify(a_command(signed | query, version), [SECRET]) == is_accepted
    assert verify(a_command(signed | query | zone, version), [SECRET]) == is_accepted
    assert verify(a_command(sign(GOLDEN | query, b"hi", CREDENTIALS), version), [SECRET]) != is_accepted


@given(st.dictionaries(st.text(), st.text()), st.binary(), st.text(min_size=1))
def test_every_signed_request_is_accepted(fields: dict[str, str], body: bytes, secret: str):
    """Whatever its keys and values are."""
    signed = sign(fields, body, Credentials("ak", secret))

    assert verify_fields(signed, body, secret.encode())
    assert not verify_fields(signed | {"AccessKey": "ak2"}, body, secret.encode())


def test_the_orders_of_names_are_bounded():
    """Whatever names peers send, and however many: the memory of orders stays small, and every order is right."""
    for number in range(3 * signature._ORDERS_MAX):
        fields = {f"z{number}": "3", "a": "1", "b": "2", signature.SIGNATURE: "s"}
        assert signature.content(fields, b"!") == b"123!"
    long_name = "n" * (signature._ORDER_SIZE_MAX + 1)
    assert signature.content({long_name: "2", "a": "1"}, b"!") == b"12!"

    assert len(signature._orders) <= signature._ORDERS_MAX
    assert not any(long_name in names for names in signature._orders)
