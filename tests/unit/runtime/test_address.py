import errno

import pytest

from holdfast.model.errors import ConfigError, PortTaken
from holdfast.runtime.address import check_listening, is_loopback, join_address, split_address, to_listen_error


@pytest.mark.parametrize(
    ("text", "expected"),
    [("127.0.0.1:9876", ("127.0.0.1", 9876)), ("[::1]:1", ("::1", 1)), ("broker-a:0", ("broker-a", 0))],
)
def test_an_address_has_a_host_and_a_port(text: str, expected: tuple[str, int]) -> None:
    """IPv6 stands in brackets."""
    assert split_address(text) == expected


@pytest.mark.parametrize("text", ["", "9876", ":9876", "host:", "host:port", "host:65536", "host:-1"])
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    """The error shows how to write one."""
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9876"):
        split_address(text)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("db", False)],
)
def test_loopback_is_what_only_this_machine_reaches(host: str, expected: bool) -> None:  # noqa: FBT001
    """A name is not trusted to be loopback, but for localhost."""
    assert is_loopback(host) is expected


def test_a_port_that_is_taken_is_told_by_its_number_and_its_option() -> None:
    """The setting may be right: stopping the other one helps as well. An address that cannot be is a wrong setting."""
    taken = to_listen_error("::1", 99, OSError(errno.EADDRINUSE, "in use"), option="listen")
    foreign = to_listen_error("192.0.2.1", 99, OSError(errno.EADDRNOTAVAIL, "not ours"), option="listen")

    assert isinstance(taken, PortTaken)
    assert "port 99 of ::1 is taken" in str(taken)
    assert "--listen" in str(taken)
    assert isinstance(foreign, ConfigError)
    assert "not ours" in str(foreign)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_needs_no_access_control(host: str) -> None:
    """Only this machine reaches it."""
    assert check_listening(host, has_auth=False, has_tls=False, is_insecure=False) is None


def test_a_role_without_access_control_is_not_open_to_a_network() -> None:
    """Unless its operator says so; then a warning remains."""
    with pytest.raises(ConfigError, match=r"refused to listen on 0\.0\.0\.0.*--auth --cluster-secret FILE.*--insecure"):
        check_listening("0.0.0.0", has_auth=False, has_tls=True, is_insecure=False)

    warning = check_listening("0.0.0.0", has_auth=False, has_tls=True, is_insecure=True)
    assert warning is not None
    assert "without access control" in warning


def test_access_control_without_tls_is_worth_a_warning() -> None:
    """Signed requests can be replayed."""
    warning = check_listening("0.0.0.0", has_auth=True, has_tls=False, is_insecure=False)

    assert warning is not None
    assert "without TLS" in warning
    assert check_listening("0.0.0.0", has_auth=True, has_tls=True, is_insecure=False) is None


@pytest.mark.parametrize("text", ["127.0.0.1:9876", "[::1]:9876", "broker-a:10911"])
def test_an_address_is_joined_as_it_is_split(text: str):
    """IPv6 hosts are in brackets, so that the port is clear."""
    assert join_address(*split_address(text)) == text
