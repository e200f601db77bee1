"""Adds a namespace to names and removes it: `NS%name`. The prefix of retry and dead-letter topics stays in front.

    orders          NS%orders
    %RETRY%billing  %RETRY%NS%billing

The system's own topics belong to no namespace. Pure text.
"""

from __future__ import annotations

from holdfast.model.topic import DEAD_LETTER_PREFIX, NOT_SENDABLE_TOPICS, RETRY_PREFIX, SYSTEM_PREFIX

_PREFIXES = (RETRY_PREFIX, DEAD_LETTER_PREFIX)


def with_namespace(namespace: str | None, name: str) -> str:
    """Return *name* as the wire knows it. A name that has the namespace already, or a system topic, stays unchanged."""
    if not namespace or name in NOT_SENDABLE_TOPICS or name.startswith(SYSTEM_PREFIX):
        return name
    prefix, rest = _split(name)
    mark = f"{namespace}%"
    return name if rest.startswith(mark) else f"{prefix}{mark}{rest}"


def without_namespace(namespace: str | None, name: str) -> str:
    """Return *name* as applications within *namespace* know it."""
    if not namespace:
        return name
    prefix, rest = _split(name)
    return prefix + rest.removeprefix(f"{namespace}%")


def _split(name: str) -> tuple[str, str]:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
