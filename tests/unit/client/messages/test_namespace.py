"""Names within a namespace."""

import pytest

from holdfast.client.messages.namespace import with_namespace, without_namespace


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("orders", "shop%orders"),
        ("%RETRY%billing", "%RETRY%shop%billing"),
        ("%DLQ%billing", "%DLQ%shop%billing"),
        ("shop%orders", "shop%orders"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_HALF_TOPIC"),
        ("rmq_sys_thing", "rmq_sys_thing"),
    ],
)
def test_a_name_gets_its_namespace_once(name: str, wire: str):
    """Behind the prefix; the system's own names stay."""
    assert with_namespace("shop", name) == wire


@pytest.mark.parametrize("name", ["orders", "%RETRY%billing", "%DLQ%billing"])
def test_users_get_back_what_they_gave(name: str):
    """The long name is for the wire."""
    assert without_namespace("shop", with_namespace("shop", name)) == name


def test_without_a_namespace_nothing_happens():
    """A percent sign means nothing then."""
    assert with_namespace(None, "a%b") == "a%b"
    assert without_namespace(None, "a%b") == "a%b"
