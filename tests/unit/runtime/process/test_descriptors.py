"""How many descriptors a role has, and how many of them strangers get."""

import resource

import pytest

from holdfast.machine.effects import Log
from holdfast.machine.security_options import SecurityOptions
from holdfast.runtime.process.descriptors import limit_unproven, raise_limit

INFINITE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("auth", "permitted", "expected"),
    [
        (True, 1_024, 512),
        (True, 20_000, 10_000),
        (True, 19_999, 9_999),
        (True, INFINITE, 10_000),
        (False, 1_024, 10_000),
    ],
)
def test_strangers_get_half_at_most(
    monkeypatch: pytest.MonkeyPatch, *, auth: bool, permitted: int, expected: int
) -> None:
    """The log says so if that is less than the option."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (permitted, permitted))
    logged: list[Log] = []

    limited = limit_unproven(SecurityOptions(auth=auth), logged.append)

    assert limited.unproven_connections_max == expected
    assert [line.fields["to"] for line in logged] == ([expected] if expected < 10_000 else [])


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ((1_024, 4_096), [(4_096, 4_096)]),
        ((1_024, INFINITE), [(1 << 20, INFINITE)]),
        ((4_096, 4_096), []),
        ((INFINITE, INFINITE), []),
    ],
)
def test_a_role_takes_what_it_may_have(
    monkeypatch: pytest.MonkeyPatch, before: tuple[int, int], expected: list[tuple[int, int]]
) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: before)
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))

    raise_limit()

    assert given == expected


def test_a_system_that_permits_less_than_it_says_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[int, int]] = []

    def refuse(_kind: int, limits: tuple[int, int]) -> None:
        tried.append(limits)
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 4_096))
    monkeypatch.setattr(resource, "setrlimit", refuse)

    raise_limit()

    assert tried == [(4_096, 4_096)]
