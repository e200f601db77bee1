"""npm `ali-ons` and PyPI `rocketmq` with credentials, at our servers with access control."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.interop.client_matrix import Run, finish
from tests.interop.foreign_members import Member, ali_ons_member, py_rocketmq_member
from tests.interop.guarded_servers import GuardedServers
from tests.interop.test_other_clients import (
    ALI_ONS_TOPICS,
    CHECKS,
    PULLED,
    PY_ROCKETMQ_TOPICS,
    run_of,
    start_ali_ons,
    start_py_rocketmq,
)
from tests.support.cluster.raw_requests import Signer, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

COUNT = 4
CLIENTS = ("ali-ons", "rocketmq")
WRONG_SECRET = "another-secret"
StartMember = Callable[[str, str, str, Signer | None], Member]


@pytest.fixture
def start(guarded: GuardedServers, tmp_path: Path) -> Iterator[StartMember]:
    """Start a member of a group by the name of its client."""
    members: list[Member] = []

    def start_member(client: str, topic: str, group: str, user: Signer | None) -> Member:
        if client == "ali-ons":
            member = ali_ons_member("m", guarded.name_server, topic, group, user=user)
        else:
            member = py_rocketmq_member("m", guarded.name_server, topic, group, tmp_path, user=user)
        members.append(member)
        return member

    yield start_member
    for member in members:
        member.child.kill()


def a_user(guarded: GuardedServers, client: str, case: str) -> tuple[Signer, str]:
    """Return a new user, and the topic and group that it has the rights for."""
    name = f"{client}-{case}"
    user = Signer(f"user-of-{name}", "secret-of-the-user")
    guarded.make_topic(name)
    guarded.add_user(user, f"Topic:{name} Pub,Sub,Get", f"Group:{name} Sub,Get")
    return user, name


@pytest.mark.parametrize("client", CLIENTS)
def test_right_credentials_work_until_the_rights_are_revoked(
    guarded: GuardedServers, start: StartMember, client: str
) -> None:
    """Every message arrives. Then the running client is refused, and gets nothing more."""
    user, name = a_user(guarded, client, "right")
    member = start(client, name, name, user)
    member.ready()
    member.send(COUNT)
    wait_until(lambda: len(member.said().got) == COUNT, lambda: str(member.said()))
    assert not member.said().failed

    guarded.revoke(user)
    member.send(1)
    wait_until(lambda: member.is_idle, lambda: str(member.said()))

    assert len(member.said().failed) == 1  # neither says why
    assert len(member.said().got) == COUNT


@pytest.mark.parametrize("case", ["wrong", pytest.param("missing", marks=pytest.mark.slow)])
@pytest.mark.parametrize("client", CLIENTS)
def test_without_credentials_nothing_is_sent_or_read(
    guarded: GuardedServers, start: StartMember, client: str, case: str
) -> None:
    """Whatever each client makes of it: it tells its user that it cannot send."""
    user, name = a_user(guarded, client, case)
    member = start(client, name, name, user._replace(secret=WRONG_SECRET) if case == "wrong" else None)
    member.ready()
    member.send(1)
    wait_until(lambda: member.is_idle, lambda: str(member.said()))

    assert len(member.said().failed) == 1
    assert not member.said().got


@pytest.fixture(scope="module")
def runs(guarded: GuardedServers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run | str]:
    """All that these clients can do, each as a user with the rights for it."""
    for topic in (*ALI_ONS_TOPICS, *PY_ROCKETMQ_TOPICS):
        guarded.make_topic(topic, queues=4)
    guarded.make_topic(PULLED, queues=4, brokers=["broker-a"])
    users = {name: Signer(f"user-of-{name}", "secret-of-the-user") for name in ("AliOns", "PyRocketmq")}
    for name, user in users.items():
        guarded.add_user(user, f"Topic:{name}-* Pub,Sub,Get,Create", f"Group:{name}-* Sub,Get")
    started = {
        "ali-ons": start_ali_ons(guarded.name_server, users["AliOns"]),
        "rocketmq": start_py_rocketmq(guarded.name_server, tmp_path_factory.mktemp("home"), users["PyRocketmq"]),
    }
    return {name: client if isinstance(client, str) else finish(client) for name, client in started.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("client", "check"), CHECKS)
def test_a_user_with_its_rights_gets_everything(runs: dict[str, Run | str], client: str, check: str) -> None:
    """The check ran and passed, with every request signed."""
    run_of(runs, client).check_passed(check)
