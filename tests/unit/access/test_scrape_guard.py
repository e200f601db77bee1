"""Who may read `/metrics`."""

import base64
import random

import pytest
from tests.support.access import SECRET, Users, role_secrets
from tests.support.cluster.machine import MachineHarness

from holdfast.access.scrape_guard import ScrapeGuard
from holdfast.nameserver.core import NameServer
from holdfast.nameserver.options import NameServerOptions

TOKEN = "the-token-of-all-scrapers"


class Scraped:
    """A name server, and who may read its metrics."""

    def __init__(self, *, token: str | None = TOKEN, auth: bool = True) -> None:
        self.role = NameServer(NameServerOptions(auth=auth), random.Random(7), secrets=role_secrets())
        self.users = Users(MachineHarness(self.role))
        self.guard = ScrapeGuard(self.role.authority, self.role.door.audited, token, is_required=auth)

    def refusal(self, authorization: str = "") -> tuple[str | None, str]:
        """Return the kind of audit line, and the reason; None if the scraper is admitted."""
        line = self.guard.find_refusal(authorization, "192.0.2.9")
        if line is None:
            return None, ""
        assert line.fields["peer"] == "192.0.2.9"
        assert SECRET not in str(line.fields)
        assert TOKEN not in str(line.fields)
        return line.audit, str(line.fields["reason"])


def basic(user: str, secret: str = SECRET) -> str:
    return "Basic " + base64.b64encode(f"{user}:{secret}".encode()).decode()


def test_without_access_control_and_token_everybody_may() -> None:
    """As before."""
    assert Scraped(token=None, auth=False).refusal()[0] is None


@pytest.mark.parametrize("auth", [False, True])
def test_the_token_admits(*, auth: bool) -> None:
    """Only the right one; it protects a role without access control, too."""
    scraped = Scraped(auth=auth)

    assert scraped.refusal(f"Bearer {TOKEN}")[0] is None
    assert scraped.refusal(f"bearer  {TOKEN} ")[0] is None
    assert scraped.refusal(f"Bearer {TOKEN}x")[0] == "login"
    assert scraped.refusal("Bearer \u00e4")[0] == "login"
    assert scraped.refusal()[0] == "refusal"
    assert scraped.role.door.audited == {"login": 2, "refusal": 1}


def test_a_user_with_get_on_the_cluster_may() -> None:
    """Nobody else; a wrong secret and an unknown user get the same answer."""
    scraped = Scraped()
    scraped.users.add("prometheus", "Cluster:* Get")
    scraped.users.add("shop", "Topic:* Pub")
    scraped.users.add("admin", is_super=True)

    assert scraped.refusal(basic("prometheus"))[0] is None
    assert scraped.refusal(basic("admin"))[0] is None
    kind, reason = scraped.refusal(basic("shop"))
    assert kind == "refusal"
    assert "has no permission to access Cluster" in reason
    assert scraped.refusal(basic("prometheus", "wrong")) == scraped.refusal(basic("unknown"))
    assert scraped.refusal(basic("prometheus", "wrong"))[0] == "login"

    scraped.users.update("prometheus", is_enabled=False)
    assert scraped.refusal(basic("prometheus"))[0] == "login"


@pytest.mark.parametrize("given", ["Basic", "Basic !!!", "Basic /w==", "Digest x", "Bearer", "x" * 100_000])
def test_garbage_is_refused(given: str) -> None:
    """No exception."""
    assert Scraped().refusal(given)[0] is not None


def test_a_bearer_token_is_no_way_in_if_there_is_none() -> None:
    """Not even an empty one."""
    scraped = Scraped(token=None)

    assert scraped.refusal("Bearer ")[0] == "refusal"
    assert "Basic" in scraped.refusal()[1]
