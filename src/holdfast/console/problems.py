"""What went wrong and what to do, as JSON with an HTTP status.

HTTP/1.1 404
{"error": {"kind": "NotFound", "message": "no broker 'x'; ...", "remedy": "...", "details": []}}
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.admin.cluster_access import NameServerUnreachable, NotAllowed, NotFound, PartlyDone
from holdfast.model.dr_switch import SwitchRefused
from holdfast.model.errors import (
    AccessDenied,
    BrokerRefused,
    ConfigError,
    ConnectionLost,
    HoldfastError,
    MappingRefused,
    RequestTimeout,
    RouteNotFound,
)


class Problem(msgspec.Struct, frozen=True):
    """Why a request failed.

    Attributes:
        kind: The name of the error.
        message: What happened.
        remedy: What to do.
        details: More lines about it, for example what has changed since a plan.
    """

    kind: str
    message: str
    remedy: str
    details: list[str] = []


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The body of every answer that is not a success."""

    error: Problem


class BadParameter(HoldfastError):
    """A parameter of a request is missing, unknown or has the wrong form."""


class NoSuchPath(HoldfastError):
    """There is nothing at this path."""


class ReadOnlyConsole(HoldfastError):
    """The console was started with --read-only."""


class ForeignRequest(HoldfastError):
    """The request came from the page of another site, or by a name that is not this console's."""


class PlanOutdated(HoldfastError):
    """The cluster has changed since a plan was made.

    Attributes:
        changed: What has changed.
    """

    def __init__(self, changed: list[str]) -> None:
        super().__init__("the cluster has changed since this plan was made; nothing was done")
        self.changed = changed


class UnknownPlan(HoldfastError):
    """There is no plan with this token: it was applied, has expired, or the console was restarted."""


class TooManyListeners(HoldfastError):
    """The console serves as many listeners, or maps, as it can."""


# From the most special kind to the most general one: the first that fits counts.
_ANSWERS: Final[tuple[tuple[type[Exception], int, str], ...]] = (
    (BadParameter, 400, "see /api/docs for the parameters of this path"),
    (ConfigError, 400, "correct the value that the message names"),
    (NoSuchPath, 404, "see /api/docs for the paths that exist"),
    (ReadOnlyConsole, 403, "use a console that was started without --read-only, or the command line"),
    (ForeignRequest, 403, "open the console by the address that it prints at its start"),
    (PlanOutdated, 409, "plan again, and read the new tables before you apply it"),
    (UnknownPlan, 409, "plan again: a token is good for one application, within its time"),
    (TooManyListeners, 503, "close a page of the console, or try again later"),
    (AccessDenied, 403, "grant the user of this console the permission (`holdfast acl grant`), or start it as another"),
    (NotFound, 404, "check the name: GET /api/v1/topics, /groups, /brokers and /moves list what exists"),
    (RouteNotFound, 404, "check the name: GET /api/v1/topics lists the topics that exist"),
    (NotAllowed, 409, "change what the message names, and try again"),
    (MappingRefused, 409, "read the current state, and try again"),
    (SwitchRefused, 409, "read the current state with GET /api/v1/units"),
    (NameServerUnreachable, 503, "start a name server (`holdfast up`); the console reconnects by itself"),
    (PartlyDone, 502, "run the command that the message names"),
    (RequestTimeout, 504, "try again; GET /api/v1/brokers shows which broker does not answer"),
    (ConnectionLost, 502, "start the server that the message names, and try again"),
    (BrokerRefused, 502, "read the reason of the server in the message"),
    (HoldfastError, 500, "try again; the log of the console may say more"),
)


def to_problem(error: Exception) -> tuple[int, Problem]:
    """Return the HTTP status and the body for an error."""
    for kind, status, remedy in _ANSWERS:
        if isinstance(error, kind):
            details = error.changed if isinstance(error, PlanOutdated) else []
            return status, Problem(type(error).__name__, str(error), remedy, details)
    text = f"internal error, {type(error).__name__}"
    return 500, Problem("InternalError", text, "look for the traceback in the log of the console, and report it")
