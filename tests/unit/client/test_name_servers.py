"""Which name server to ask."""

from random import Random

import pytest

from holdfast.client.name_servers import NameServers, parse_addresses
from holdfast.model.errors import ConfigError


def test_a_list_is_read_with_either_separator():
    """Blanks and repetitions do not count."""
    assert parse_addresses(" a:1; b:2,a:1 ;[::1]:3;") == ["a:1", "b:2", "[::1]:3"]


@pytest.mark.parametrize("text", ["", ";", "host", "host:", ":9876", "host:port", "host:0", "host:65536"])
def test_what_is_no_address_is_refused(text: str):
    """With an example of what is."""
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9876"):
        parse_addresses(text)


def test_one_is_used_until_it_fails():
    """Then the next, in a circle."""
    servers = NameServers("a:1;b:2;c:3", Random(1))
    first = servers.current

    servers.give_up(first)
    second = servers.current
    servers.give_up(first)  # somebody else noticed late
    assert servers.current == second != first

    servers.give_up(second)
    servers.give_up(servers.current)
    assert servers.current == first


def test_clients_spread_over_the_list():
    """Where each begins is chance."""
    starts = {NameServers("a:1;b:2;c:3", Random(seed)).current for seed in range(50)}

    assert starts == {"a:1", "b:2", "c:3"}
