"""Clients that nobody here wrote, in other languages: npm `ali-ons` 3.12.0 and PyPI `rocketmq` 0.4.4.

Both run side by side, as most of their time is the wait for a retry; each of their checks is one test.
"""

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.interop.client_matrix import Run, finish
from tests.interop.conftest import missing
from tests.interop.servers import Servers
from tests.support.child import Child
from tests.support.cluster.raw_requests import Signer, make_topic
from tests.support.java_peer import cache_home

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

HERE = Path(__file__).parent
CHECKS = [
    *(("ali-ons", check) for check in ("plain", "tags", "retry", "come_back", "shut_down")),
    *(("rocketmq", check) for check in ("concurrent", "ordered", "pulled", "made_by_sending", "come_back")),
    *(("rocketmq", check) for check in ("refuse", "retry", "shut_down")),
]
ALI_ONS = "ali-ons@3.12.0"
PY_ROCKETMQ = "rocketmq==0.4.4"


def installed(name: str, command: Sequence[str]) -> Path:
    """Return the cache folder of a package, installed by *command* unless it is there: whole, or not at all."""
    folder = cache_home() / "holdfast-interop" / name
    if folder.is_dir():
        return folder
    new = folder.with_name(f"{name}.{os.getpid()}")
    new.mkdir(parents=True)
    subprocess.run(command, cwd=new, check=True, stdout=subprocess.DEVNULL)
    new.rename(folder)
    return folder


ALI_ONS_TOPICS = ("AliOns-plain", "AliOns-tags", "AliOns-retry")
PY_ROCKETMQ_TOPICS = ("PyRocketmq-plain", "PyRocketmq-ordered", "PyRocketmq-retry")
# Its pull consumer remembers offsets by queue number alone: two brokers would share them.
PULLED = "PyRocketmq-pulled"


def credentials_of(user: Signer | None) -> dict[str, str]:
    """Return the environment in which the programs here sign as *user*."""
    return {} if user is None else {"ACCESS_USER": user.user, "ACCESS_SECRET": user.secret}


def start_ali_ons(name_server: str, user: Signer | None = None) -> Child | str:
    """Start the JavaScript client, or return what is missing."""
    if (reason := missing("node", "npm")) is not None:
        return reason
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", ".", ALI_ONS]
    packages = installed("ali-ons-3.12.0", install) / "node_modules"
    command = ["node", str(HERE / "js" / "ali_ons.js"), name_server, "AliOns-"]
    return Child(command, name="ali-ons", environment={"NODE_PATH": str(packages), **credentials_of(user)})


def start_py_rocketmq(name_server: str, home: Path, user: Signer | None = None) -> Child | str:
    """Start the Python client with the C++ library, or return what is missing."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return "needs Linux on x86_64: the C++ library of PyPI's rocketmq 0.4.4 exists for no other machine"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    packages = installed("py-rocketmq-0.4.4", [*pip, "--target", ".", PY_ROCKETMQ])
    # The library writes its log below the home folder.
    environment = {"PYTHONPATH": str(packages), "HOME": str(home), **credentials_of(user)}
    script = str(HERE / "python_client" / "ledger_of_cpp_client.py")
    command = [sys.executable, script, name_server, "PyRocketmq-"]
    return Child(command, name="PyPI rocketmq", environment=environment)


@pytest.fixture(scope="module")
def runs(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run | str]:
    """Both programs, started before either is waited for."""
    for topic in (*ALI_ONS_TOPICS, *PY_ROCKETMQ_TOPICS):
        make_topic(servers.name_server, servers.brokers.values(), topic, queues=4)
    make_topic(servers.name_server, [servers.first_broker], PULLED, queues=4)
    started = {
        "ali-ons": start_ali_ons(servers.name_server),
        "rocketmq": start_py_rocketmq(servers.name_server, tmp_path_factory.mktemp("home")),
    }
    return {name: client if isinstance(client, str) else finish(client) for name, client in started.items()}


def run_of(runs: dict[str, Run | str], client: str) -> Run:
    """Return the run of *client*, or skip with the line that says what to install."""
    run = runs[client]
    if isinstance(run, str):
        pytest.skip(run)
    return run


@pytest.mark.parametrize(("client", "check"), CHECKS)
def test_a_foreign_client_gets_what_it_relies_on(runs: dict[str, Run | str], client: str, check: str) -> None:
    """The check ran and passed; on failure the client's own words are the message."""
    run_of(runs, client).check_passed(check)


@pytest.mark.parametrize("client", ["ali-ons", "rocketmq"])
def test_a_foreign_client_finds_all_well(runs: dict[str, Run | str], client: str) -> None:
    """The program itself sums up: status 0, after an orderly shutdown."""
    run = run_of(runs, client)

    assert run.status == 0, run.printed
