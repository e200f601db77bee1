"""Clients that nobody here wrote, in other languages: npm `ali-ons` 3.12.0 and PyPI `rocketmq` 0.4.4.

Both run side by side, as most of their time is the wait for a retry; each of their checks is one test.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.interop.conftest import need
from tests.interop.servers import Servers
from tests.support.child import Child
from tests.support.cluster import make_topic
from tests.support.java_peer import cache_home

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

HERE = Path(__file__).parent
ALI_ONS = "ali-ons@3.12.0"
PY_ROCKETMQ = "rocketmq==0.4.4"
_TIMEOUT_S = 180.0

Reports = dict[str, dict[str, Any]]


def installed(name: str, command: Sequence[str]) -> Path:
    """Return the cache folder of a package, installed by *command* in it unless it is there; it appears complete or not at all."""
    folder = cache_home() / "holdfast-interop" / name
    if folder.is_dir():
        return folder
    new = folder.with_name(f"{name}.{os.getpid()}")
    new.mkdir(parents=True)
    subprocess.run(command, cwd=new, check=True, stdout=subprocess.DEVNULL)
    new.rename(folder)
    return folder


@pytest.fixture(scope="module")
def ali_ons(servers: Servers) -> Child:
    need("node", "npm")
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", ".", ALI_ONS]
    packages = installed("ali-ons-3.12.0", install) / "node_modules"
    for topic in ("plain", "tags", "retry"):
        make_topic(servers.name_server, servers.brokers.values(), f"AliOns-{topic}", queues=4)
    command = ["node", str(HERE / "js" / "ali_ons.js"), servers.name_server, "AliOns-"]
    return Child(command, name="ali-ons", environment={"NODE_PATH": str(packages)})


@pytest.fixture(scope="module")
def py_rocketmq(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Child:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("needs Linux on x86_64: the C++ library of PyPI's rocketmq 0.4.4 exists for no other machine")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", ".", PY_ROCKETMQ]
    packages = installed("py-rocketmq-0.4.4", install)
    for topic in ("plain", "ordered", "retry"):
        make_topic(servers.name_server, servers.brokers.values(), f"PyRocketmq-{topic}", queues=4)
    # Its pull consumer remembers offsets by queue number alone: two brokers would share them.
    make_topic(servers.name_server, [servers.first_broker], "PyRocketmq-pulled", queues=4)
    # The library writes its log below the home folder.
    environment = {"PYTHONPATH": str(packages), "HOME": str(tmp_path_factory.mktemp("home"))}
    script = str(HERE / "python_client" / "ledger_of_cpp_client.py")
    command = [sys.executable, script, servers.name_server, "PyRocketmq-"]
    return Child(command, name="PyPI rocketmq", environment=environment)


def finish(child: Child) -> tuple[int, Reports, str]:
    """Return the exit status, what was reported by check, and the last lines, once the program has ended by itself."""
    status = child.wait(timeout_s=_TIMEOUT_S)
    reports = [json.loads(line) for line in child.lines() if line.startswith('{"check"')]
    return status, {report["check"]: report for report in reports}, child.said()


@pytest.fixture(scope="module")
def runs(ali_ons: Child, py_rocketmq: Child) -> dict[str, tuple[int, Reports, str]]:
    """Both programs, started before either is waited for."""
    with ali_ons, py_rocketmq:
        return {"ali-ons": finish(ali_ons), "rocketmq": finish(py_rocketmq)}


@pytest.mark.parametrize(
    ("client", "check"),
    [
        *(("ali-ons", check) for check in ("plain", "tags", "retry", "come_back", "shut_down")),
        *(
            ("rocketmq", check)
            for check in ("concurrent", "ordered", "retry", "pulled", "made_by_sending", "come_back", "shut_down")
        ),
    ],
)
def test_a_foreign_client_gets_what_it_relies_on(
    runs: dict[str, tuple[int, Reports, str]], client: str, check: str
):
    """The check ran and passed; on failure the client's own words are the message."""
    status, reports, said = runs[client]

    assert check in reports, f"{client} ended with {status} and without a word of {check}:\n{said}"
    assert reports[check]["ok"], reports[check]["error"]


@pytest.mark.parametrize("client", ["ali-ons", "rocketmq"])
def test_a_foreign_client_finds_all_well(runs: dict[str, tuple[int, Reports, str]], client: str):
    """The program itself sums up: status 0, after an orderly shutdown."""
    status, _, said = runs[client]

    assert status == 0, said
