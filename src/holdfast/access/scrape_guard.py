"""Who may read the metrics of a role over HTTP.

no token file, no access control ────────────────────────> everybody
Authorization: Bearer TOKEN, the one in the token file ──> admitted
Authorization: Basic USER:SECRET, of a user with Get on the cluster, with access control ──> admitted
anything else ───────────────────────────────────────────> refused, counted, logged
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections import Counter
from typing import Final

from holdfast.access.authority import Authority
from holdfast.access.door import REFUSED
from holdfast.access.login_server import LOGIN_FAILED
from holdfast.access.sessions import NAME_SIZE_MAX
from holdfast.machine.effects import AuditKind, Log
from holdfast.model.access.resource import THIS_CLUSTER, Action, Permission

_HEADER_MAX: Final = 4_096
_NEEDED: Final = Permission(THIS_CLUSTER, frozenset({Action.GET}))


class ScrapeGuard:
    """Admits or refuses scrapers.

    Args:
        authority: The users of the role.
        audited: How many audit lines of each kind there were.
        token: The token of scrapers; None if there is none.
        is_required: Whether access control is on.
    """

    def __init__(
        self, authority: Authority, audited: Counter[AuditKind], token: str | None, *, is_required: bool
    ) -> None:
        self._authority = authority
        self._audited = audited
        self._token = None if token is None else token.encode()
        self._is_required = is_required

    def find_refusal(self, authorization: str, ip: str) -> Log | None:
        """Return the log line for a scraper that may not read the metrics, or None if it may.

        Args:
            authorization: The header of this name; empty if there is none.
            ip: The address of the scraper.
        """
        if self._token is None and not self._is_required:
            return None
        method, _, given = authorization[:_HEADER_MAX].partition(" ")
        given = given.strip()
        match method.lower():
            case "bearer" if self._token is not None:
                is_right = hmac.compare_digest(given.encode(), self._token)
                return None if is_right else self._refuse("login", "", ip, "wrong token for /metrics")
            case "basic" if self._is_required:
                return self._find_user_refusal(given, ip)
        ways = ["the token of scrapers (Bearer)"] if self._token is not None else []
        if self._is_required:
            ways.append("a user with Get on the cluster (Basic)")
        return self._refuse("refusal", "", ip, f"/metrics needs {' or '.join(ways)}")

    def _find_user_refusal(self, given: str, ip: str) -> Log | None:
        try:
            name, _, secret = base64.b64decode(given, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            return self._refuse("login", "", ip, "the credentials for /metrics cannot be read")
        user = self._authority.find_user(name)
        secrets = user.secrets if user is not None and user.is_enabled else ()
        # Every secret is compared, and the answer is the same for an unknown user.
        if not sum([hmac.compare_digest(secret.encode(), known.encode()) for known in secrets]):
            return self._refuse("login", name, ip, "wrong user or secret for /metrics")
        decision = self._authority.decide(name, _NEEDED, ip)
        return None if decision.is_allowed else self._refuse("refusal", name, ip, decision.reason)

    def _refuse(self, kind: AuditKind, user: str, ip: str, reason: str) -> Log:
        self._audited[kind] += 1
        event = LOGIN_FAILED if kind == "login" else REFUSED
        return Log("warning", event, {"user": user[:NAME_SIZE_MAX], "peer": ip, "reason": reason}, kind)
