"""The options that all clients have."""

import pytest

from holdfast.client.options import ClientOptions
from holdfast.model.errors import LocalProtocolError


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"namesrv": 9876}, TypeError),
        ({"namespace": "a b"}, LocalProtocolError),
        ({"timeout_s": "3"}, TypeError),
        ({"name_server_refresh_s": float("nan")}, ValueError),
        ({"topic_expiry_s": "never"}, TypeError),
        ({"unit": 1}, TypeError),
    ],
)
def test_an_option_that_cannot_work_is_refused_by_its_name(wrong: dict[str, object], error: type[Exception]):
    """When it is given, not when it is used first."""
    with pytest.raises(error, match=next(iter(wrong))):
        ClientOptions(**{"namesrv": "ns:1", **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(("namespace", "name"), [(None, "orders"), ("", "orders"), ("shop", "shop%orders")])
def test_names_on_the_wire_have_the_namespace(namespace: str | None, name: str):
    """If there is one."""
    assert ClientOptions("ns:1", namespace=namespace).wire_name("orders") == name
