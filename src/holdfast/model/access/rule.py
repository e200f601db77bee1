"""What a user may do, or may not do, on which resources: a policy entry of ACL 2.0.

    Allow Topic:orders* Pub,Sub from 10.0.0.0/8

The *tier* is the type of policy to which ACL 2.0 assigns an entry: Default rules count only if no Custom rule matches.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

from holdfast.model.access.refusal import DirectoryRefused
from holdfast.model.access.resource import Action, Permission, Resource, ResourceType
from holdfast.model.access.source_address import SourcePattern

ALL_ACTIONS: Final = frozenset(Action)
ALL: Final = "All"
"""The word for all actions."""
NAME_LENGTH_MAX: Final = 255
SOURCES_MAX: Final = 64
"""Limit for the source addresses of one rule."""


class NameMatch(Enum):
    """How a pattern compares names. In the order of rank."""

    LITERAL = 1
    PREFIXED = 2
    ANY = 3


class Effect(Enum):
    """What a rule does to the requests that it matches."""

    ALLOW = "Allow"
    DENY = "Deny"


class Tier(Enum):
    """The type of policy to which a rule belongs. Default rules count only if no Custom rule matches."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


class ResourcePattern(NamedTuple):
    """The resources that a rule is for.

    Attributes:
        type: None: resources of every type.
        name: The name, or the start of it; empty for any name.
        match: How names are compared.
    """

    type: ResourceType | None
    name: str
    match: NameMatch

    @classmethod
    def parse(cls, text: str) -> ResourcePattern:
        """Return the pattern of a text: `*`, `Topic:*`, `Topic:orders*` or `Topic:orders`.

        Raises:
            DirectoryRefused: *text* is no pattern.
        """
        if text == "*":
            return ANY_RESOURCE
        word, colon, name = text.partition(":")
        type_ = _TYPES.get(word.lower())
        if not colon or type_ is None:
            raise DirectoryRefused(
                f"The resource is null. {text[:80]!r} is neither '*' nor a type and a name such as Topic:orders; types "
                f"are {', '.join(each.value for each in ResourceType)}."
            )
        if name == "*":
            return cls(type_, "", NameMatch.ANY)
        start = name.removesuffix("*")
        if not start or "*" in start or len(start) > NAME_LENGTH_MAX or not start.isprintable() or " " in start:
            raise DirectoryRefused(
                f"the resource {text[:80]!r} cannot be used: its name needs 1 to {NAME_LENGTH_MAX} characters, no "
                "spaces, and '*' only at its end"
            )
        return cls(type_, start, NameMatch.LITERAL if start == name else NameMatch.PREFIXED)

    def matches(self, resource: Resource) -> bool:
        """Return whether *resource* is one of these."""
        if self.type is not None and self.type is not resource.type:
            return False
        if self.match is NameMatch.LITERAL:
            return resource.name == self.name
        return self.match is NameMatch.ANY or resource.name.startswith(self.name)

    def __str__(self) -> str:
        if self.type is None:
            return "*"
        return f"{self.type.value}:{self.name}{'' if self.match is NameMatch.LITERAL else '*'}"


ANY_RESOURCE: Final = ResourcePattern(None, "", NameMatch.ANY)
"""The pattern `*`."""
_TYPES: Final = {each.value.lower(): each for each in ResourceType}
_ACTIONS: Final = {each.value.lower(): each for each in Action}


class Rule(NamedTuple):
    """One rule of one user.

    Attributes:
        resource: What it is for. A user has at most one rule for each tier and resource pattern.
        actions: At least one.
        effect: Whether it allows or denies them.
        sources: The addresses from which it applies; none: from every address.
        tier: Default rules count only if no Custom rule matches.
    """

    resource: ResourcePattern
    actions: frozenset[Action]
    effect: Effect = Effect.ALLOW
    sources: tuple[SourcePattern, ...] = ()
    tier: Tier = Tier.CUSTOM

    def matches(self, permission: Permission, ip: str) -> bool:
        """Return whether the rule is for *permission*, requested from *ip*.

        As in RocketMQ, it is if it contains any one of the permission's actions.
        """
        return (
            not self.actions.isdisjoint(permission.actions)
            and self.resource.matches(permission.resource)
            and (not self.sources or any(source.matches(ip) for source in self.sources))
        )

    @property
    def rank(self) -> tuple[object, ...]:
        """The order of rules: of all that match, the one with the smallest rank decides."""
        pattern = self.resource
        return (
            self.tier is Tier.DEFAULT,
            pattern.type is None,
            pattern.match.value,
            -len(pattern.name),
            self.effect is Effect.ALLOW,
            str(pattern),
        )

    def __str__(self) -> str:
        sources = f" from {','.join(map(str, self.sources))}" if self.sources else ""
        tier = " (Default)" if self.tier is Tier.DEFAULT else ""
        return f"{self.effect.value} {self.resource} {','.join(list_actions(self.actions))}{sources}{tier}"


def parse_actions(words: Iterable[str]) -> frozenset[Action]:
    """Return the actions with these names, in any case; `All` stands for all of them.

    Raises:
        DirectoryRefused: there is none, or a word is no action. RocketMQ ignores unknown words, which turns a misspelt
            Deny into none at all.
    """
    actions: set[Action] = set()
    for word in words:
        name = word.strip().lower()
        if name == "any":
            raise DirectoryRefused("The actions can not be Any.")
        if name != ALL.lower() and name not in _ACTIONS:
            known = ", ".join([ALL, *(each.value for each in Action)])
            raise DirectoryRefused(f"the action {word[:40]!r} is unknown: the actions are {known}")
        actions |= ALL_ACTIONS if name == ALL.lower() else {_ACTIONS[name]}
    if not actions:
        raise DirectoryRefused("The actions is empty.")
    return frozenset(actions)


def list_actions(actions: frozenset[Action]) -> list[str]:
    """Return the names of *actions* in a fixed order: `All` if these are all."""
    return [ALL] if actions == ALL_ACTIONS else [each.value for each in Action if each in actions]
