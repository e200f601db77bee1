"""The address of this machine."""

import ipaddress

from holdfast.runtime.process.own_host import find_own_host


def test_the_own_host_is_an_address_that_can_be_dialled():
    """Never the wildcard: clients dial it."""
    found = ipaddress.ip_address(find_own_host())

    assert not found.is_unspecified
