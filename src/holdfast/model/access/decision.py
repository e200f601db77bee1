"""Whether a user has a permission, and which rule decides.

    all rules of the user ─> those that match ─> Custom before Default ─> the first by rank decides
                             none: denied

Rank, as in ACL 2.0: a specific type before `*`; a literal name before a prefix before any name; a longer prefix before
a shorter one; Deny before Allow.

A permission may have several alternative actions. As in RocketMQ, a rule with any one of them matches, and the first
matching rule decides for all of them: `Deny Topic:t Sub` denies a permission for Sub or Get, although
`Allow Topic:* Get` alone would allow it. So the same rules have the same result here and in RocketMQ.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.model.access.directory import Directory
from holdfast.model.access.resource import THIS_CLUSTER, Action, Permission
from holdfast.model.access.rule import Effect, Rule
from holdfast.model.access.user import CLUSTER_USER


class Decision(NamedTuple):
    """Whether a permission is granted.

    Attributes:
        is_allowed: Whether it is.
        rule: The rule that decided; None: no rule did.
        reason: Why, for readers. For a refusal, the beginning is RocketMQ's text.
    """

    is_allowed: bool
    rule: Rule | None
    reason: str


def decide(directory: Directory, user_name: str, permission: Permission, ip: str, cluster: str) -> Decision:
    """Return whether a user who proved its identity has *permission*.

    Args:
        directory: All users and rules.
        user_name: The user. That of servers may do everything.
        permission: What a request needs.
        ip: The address from which the request comes.
        cluster: The name of the cluster of this server, for permissions that concern it. A name server, which serves
            several clusters, gives an empty name: then only `Cluster:*` and `*` match.
    """
    if user_name == CLUSTER_USER:
        return Decision(is_allowed=True, rule=None, reason=f"User:{user_name} is a server")
    user = directory.find_user(user_name)
    if user is None:
        return Decision(is_allowed=False, rule=None, reason=f"User:{user_name} is not found.")
    if not user.is_enabled:
        return Decision(is_allowed=False, rule=None, reason=f"User:{user_name} is disabled.")
    if user.is_super:
        return Decision(is_allowed=True, rule=None, reason=f"User:{user_name} is a Super user")
    wanted = name_cluster(permission, cluster)
    rules = find_matches(directory, user_name, wanted, ip, cluster)
    if rules and rules[0].effect is Effect.ALLOW:
        return Decision(is_allowed=True, rule=rules[0], reason=f"User:{user_name} has the rule {rules[0]}")
    verdict = "the decision is deny" if rules else "no matched policies"
    needed = " or ".join(action.value for action in Action if action in wanted.actions)
    name = f"{wanted.resource}{'' if wanted.resource.name else '*'}"  # A name server serves several clusters.
    reason = f"User:{user_name} has no permission to access {name} from {ip}, {verdict}. It needs {needed}."
    return Decision(is_allowed=False, rule=rules[0] if rules else None, reason=reason)


def find_matches(
    directory: Directory, user_name: str, permission: Permission, ip: str, cluster: str
) -> tuple[Rule, ...]:
    """Return all rules of a user that match, by rank: the first one decides. The arguments are those of `decide`."""
    wanted = name_cluster(permission, cluster)
    rules = [rule for rule in directory.rules_of(user_name) if rule.matches(wanted, ip)]
    return tuple(sorted(rules, key=lambda rule: rule.rank))


def name_cluster(permission: Permission, cluster: str) -> Permission:
    """Return *permission* with the name of the cluster, if it is for the cluster of the server."""
    if permission.resource != THIS_CLUSTER:
        return permission
    return permission._replace(resource=THIS_CLUSTER._replace(name=cluster))
