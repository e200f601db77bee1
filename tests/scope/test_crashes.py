"""Servers that are killed while a unit is opened or closed: what was acknowledged holds, and all agree in the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.cluster.process_presets import units_cluster
from tests.support.cluster.processes import ProcessCluster
from tests.support.cluster.raw_requests import KINDS, wait_until

QUEUES = 4
VICTIMS = ("name server 0", "name server 1", "both name servers", "e1", "w1")
DELAYS_S = (0.0, 0.01, 0.03)


def end(fleet: ProcessCluster, victim: str) -> Callable[[], None]:
    """Kill somebody without a word; return how to start it again."""
    numbers = [0, 1] if victim == "both name servers" else [int(victim[-1])] if "name server" in victim else []
    victims = [fleet.name_servers[number] for number in numbers] or [victim]
    for each in victims:
        fleet.kill(each)

    def start() -> None:
        for each in victims:
            fleet.restart(each)
        fleet.wait_until_registered(*fleet.brokers)

    return start


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_opening_that_was_acknowledged_survives_whoever_dies_meanwhile(tmp_path: Path):
    """And so does a closing; whatever was not is done or not, and everywhere the same."""
    with units_cluster(tmp_path, {"e1": "east", "w1": "west"}, name_servers=2) as fleet:
        for unit in ("east", "west"):
            fleet.run("topic", "create", "orders", "--logical-queues", str(QUEUES), "--scope", unit)
        is_open = False
        for victim in VICTIMS:
            for delay_s in DELAYS_S:
                is_open = check_change(fleet, victim, delay_s, is_open=is_open)


def check_change(fleet: ProcessCluster, victim: str, delay_s: float, *, is_open: bool) -> bool:
    """Open or close a unit while a server dies, check the routes, and return whether the unit is open in the end."""
    again: list[Callable[[], None]] = []

    def strike() -> None:
        time.sleep(delay_s)
        again.append(end(fleet, victim))

    thread = threading.Thread(target=strike)
    thread.start()
    said = fleet.attempt("dr", "close" if is_open else "open", "--unit", "east")
    thread.join()
    again[0]()

    wait_until(lambda: fleet.run("dr", "status")["is_equal"])
    is_open_now = bool(fleet.run("dr", "status")["openings"])
    if said.status == 0:
        assert is_open_now is not is_open, (victim, delay_s, said)
    for at in range(2):
        for kind in KINDS.values():
            told = fleet.route("orders", "west", kind=kind, at=at)
            assert told.written_at == {"__syslo__west"}
            assert len(told.reads) == (2 * QUEUES if is_open_now else QUEUES)
    return is_open_now
