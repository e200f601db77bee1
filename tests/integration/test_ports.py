"""Runs of the tests beside each other, on one machine."""

import sys

from tests.support.child import Child
from tests.support.cluster.ports import PORT_FIRST, PORT_LAST

from holdfast.admin.cluster_start import _FREE_PORTS

# More than half of the ports that there were when all runs shared them, and far more than a block has.
PROGRAM = """
from tests.support.cluster.ports import free_port
print("ports", *(free_port() for _ in range(60)), flush=True)
input()
"""


def test_two_runs_never_use_the_same_port():
    """Not even one that is free just now: its broker may be about to start again."""
    with (
        Child([sys.executable, "-c", PROGRAM], name="one") as one,
        Child([sys.executable, "-c", PROGRAM], name="two") as two,
    ):
        ports = [set(run.wait_for_line("ports", timeout_s=60).split()[1:]) for run in (one, two)]

    assert all(ports)
    assert not ports[0] & ports[1]


def test_holdfast_up_picks_no_port_of_the_tests():
    """A broker of a test that is down for a moment does not occupy its ports."""
    assert _FREE_PORTS.stop <= PORT_FIRST or _FREE_PORTS.start >= PORT_LAST
