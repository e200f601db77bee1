"""Which name server to ask."""

from random import Random

import pytest

from holdfast.client.routes.name_server_choice import NameServers, is_url, parse_addresses
from holdfast.model.errors import ConfigError, ConnectionLost


def test_a_list_is_read_with_either_separator():
    """Blanks and repetitions do not count."""
    assert parse_addresses(" a:1; b:2,a:1 ;[::1]:3;") == ["a:1", "b:2", "[::1]:3"]


@pytest.mark.parametrize(
    "text", ["", ";", "host", "host:", ":9876", "host:port", "host:0", "host:65536", "h:" + "9" * 5000, "a:1\nb:2"]
)
def test_what_is_no_address_is_refused(text: str):
    """With an example of what is."""
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9876"):
        parse_addresses(text)


def test_one_is_used_until_it_fails():
    """Then the next, in a circle."""
    servers = NameServers("a:1;b:2;c:3", Random(1))
    first = servers.current

    assert servers.fail_over(first)
    second = servers.current
    assert not servers.fail_over(first)  # the failure of another request: nothing changes
    assert servers.current == second != first

    servers.fail_over(second)
    servers.fail_over(servers.current)
    assert servers.current == first


def test_clients_spread_over_the_list():
    """Where each begins is chance."""
    starts = {NameServers("a:1;b:2;c:3", Random(seed)).current for seed in range(50)}

    assert starts == {"a:1", "b:2", "c:3"}


def test_another_list_is_another_choice():
    """Whether it is longer or has others in it: who is added gets its share. The order says nothing."""
    chosen = set()
    for seed in range(50):
        servers = NameServers("a:1;b:2", Random(seed))
        used = servers.current
        assert not servers.change(["b:2", "a:1"])
        assert servers.current == used
        assert servers.change(["a:1", "b:2", "c:3"])
        chosen.add(servers.current)
        assert servers.change(["d:4"])
        assert servers.current == "d:4"
    assert chosen == {"a:1", "b:2", "c:3"}


def test_giving_up_the_only_one_changes_nothing():
    """There is nobody else to go to."""
    servers = NameServers("a:1", Random(1))

    assert not servers.fail_over("a:1")
    assert servers.current == "a:1"


def test_a_list_may_be_unknown_at_first():
    """An address server has to be asked."""
    servers = NameServers("", Random(1))
    with pytest.raises(ConnectionLost, match="start the client"):
        _ = servers.current

    servers.change(["a:1"])

    assert servers.current == "a:1"


def test_an_address_server_is_told_from_a_list():
    """By its scheme."""
    assert [is_url(text) for text in ("http://a/b", " https://a", "a:1", "http:1")] == [True, True, False, False]
