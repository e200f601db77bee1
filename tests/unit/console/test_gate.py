"""Which requests pass."""

import pytest
from starlette.datastructures import Headers

from holdfast.console.gate import find_refusal, is_own_host


@pytest.mark.parametrize(
    "host", ["127.0.0.1:9880", "localhost:9880", "LOCALHOST", "[::1]:9880", "[::1]", "127.0.0.1", "127.3.2.1:80"]
)
def test_names_of_this_machine_pass(host: str):
    """With any port: it may be forwarded through ssh."""
    assert is_own_host(host)


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:9880", "localhost.evil.example", "127.0.0.1.evil.example:80", "", ":9880"),
        *("10.0.0.1:9880", "[2001:db8::1]:80", "localhost:evil", "127.0.0.1:80:80", "0.0.0.0", "user@localhost"),
    ],
)
def test_other_names_do_not_pass(host: str):
    """A page that made its own name point here has that name in `Host`."""
    assert not is_own_host(host)


@pytest.mark.parametrize(
    ("headers", "method", "passes"),
    [
        ([("host", "localhost:1")], "GET", True),
        ([], "GET", False),
        ([("host", "localhost:1"), ("host", "evil")], "GET", False),
        ([("host", "localhost:1"), ("origin", "http://localhost:1")], "GET", True),
        ([("host", "localhost:1"), ("origin", "http://localhost:2")], "GET", False),
        ([("host", "localhost:1"), ("origin", "http://localhost:1"), ("origin", "http://evil")], "GET", False),
        ([("host", "localhost:1"), ("origin", "null")], "GET", False),
        ([("host", "localhost:1")], "POST", False),
        ([("host", "localhost:1"), ("content-type", "application/json; charset=utf-8")], "POST", True),
        ([("host", "localhost:1"), ("content-type", "application/json-patch")], "POST", False),
    ],
)
def test_a_request_is_judged_by_its_headers(headers: list[tuple[str, str]], method: str, *, passes: bool):
    """Its host, its origin, and for changes the type of its body."""
    raw = [(name.encode(), text.encode()) for name, text in headers]

    assert (find_refusal(Headers(raw=raw), method) is None) == passes
