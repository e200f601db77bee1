"""Single roles as processes: ready line, metrics, health, logs, orderly end."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.support.child import Child
from tests.support.cluster.operator import HOLDFAST
from tests.support.cluster.ports import free_port
from tests.support.cluster.up import READY_TIMEOUT_S

from holdfast.cli.main import main
from holdfast.native import DESCRIPTION


def fetch(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def ready(child: Child) -> dict[str, str]:
    """Return what the ready line says."""
    found: dict[str, str] = json.loads(child.wait_for_line('^{"role"', timeout_s=READY_TIMEOUT_S))
    return found


def test_both_roles_answer_metrics_and_health(tmp_path: Path):
    """Numbers of the traffic that just was, on an HTTP port of each role's own."""
    namesrv_metrics, broker_metrics, port = free_port(), free_port(), free_port()
    namesrv_words = ["serve", "namesrv", "--listen", "127.0.0.1:0", "--json"]
    with Child([HOLDFAST, *namesrv_words, "--metrics-listen", f"127.0.0.1:{namesrv_metrics}"], name="namesrv") as first:
        namesrv = ready(first)["address"]
        words = ["serve", "broker", "--name", "b", "--namesrv", namesrv, "--listen", f"127.0.0.1:{port}", "--json"]
        words += ["--store", str(tmp_path / "store"), "--metrics-listen", f"127.0.0.1:{broker_metrics}"]
        with Child([HOLDFAST, *words], name="broker") as second:
            assert ready(second)["address"] == f"127.0.0.1:{port}"
            assert main(["topic", "create", "t", "--queues", "1", "--namesrv", namesrv]) == 0
            assert main(["send", "t", "hello", "--count", "3", "--namesrv", namesrv]) == 0

            assert fetch(broker_metrics, "/health") == "ok\n"
            assert fetch(namesrv_metrics, "/health") == "ok\n"
            numbers = fetch(broker_metrics, "/metrics")
            assert 'holdfast_broker_topic_puts_total{topic="t"} 3.0' in numbers
            info = f'accelerator="{DESCRIPTION.split()[0]}",broker="b",cluster="DefaultCluster",flush="sync"'
            assert f"holdfast_broker_info{{{info}}} 1.0" in numbers
            assert "holdfast_broker_writable 1.0" in numbers
            assert "holdfast_namesrv_brokers 1.0" in fetch(namesrv_metrics, "/metrics")


def test_a_role_ends_in_order_on_sigterm_and_logs_json_lines():
    """Status 0; every line on standard error is an object with event and level."""
    child = Child([HOLDFAST, "serve", "namesrv", "--listen", "127.0.0.1:0", "--log-json"], name="namesrv")
    child.wait_for_line("name server ready", timeout_s=READY_TIMEOUT_S)

    assert child.stop() == 0

    lines = [json.loads(line) for line in child.lines()]
    assert [line["event"] for line in lines][-1] == "name server stopped"
    assert {line["level"] for line in lines} == {"info"}


def test_a_role_reads_its_options_from_file_and_environment(tmp_path: Path):
    """The same options in all three places; the flag wins."""
    file = tmp_path / "holdfast.toml"
    file.write_text('[namesrv]\nlisten = "127.0.0.1:1"\n[log]\njson = true\n', encoding="utf-8")
    words = ["serve", "namesrv", "--config", str(file), "--listen", "127.0.0.1:0"]
    with Child([HOLDFAST, *words], name="namesrv", environment={"HOLDFAST_LOG_LEVEL": "info"}) as child:
        line = json.loads(child.wait_for_line("name server ready", timeout_s=READY_TIMEOUT_S))

    assert line["listen"] != "127.0.0.1:1"


def test_a_role_starts_among_the_variables_of_other_software():
    """Those of Kubernetes services mean nothing; an unknown one is a warning with the name that was perhaps meant."""
    environment = {"HOLDFAST_PORT": "tcp://10.43.0.9:9876", "HOLDFAST_NAMESRV_SERVICE_HOST": "10.43.0.9"}
    environment |= {"HOLDFAST_DAAT": "ns"}
    words = ["serve", "namesrv", "--listen", "127.0.0.1:0", "--json", "--log-level", "warning"]
    with Child([HOLDFAST, *words], name="namesrv", environment=environment) as child:
        ready(child)

    (warning,) = (line for line in child.lines() if "variable" in line)
    assert "unknown variable HOLDFAST_DAAT has no effect; did you mean 'HOLDFAST_DATA'?" in warning


def test_a_port_that_is_taken_is_one_line_and_status_one():
    """Told by number; no traceback, and nobody says that something stopped which never ran."""
    with Child([HOLDFAST, "serve", "namesrv", "--listen", "127.0.0.1:0", "--json"], name="first") as first:
        address = ready(first)["address"]
        second = Child([HOLDFAST, "serve", "namesrv", "--listen", address, "--log-level", "info"], name="second")

        assert second.wait(timeout_s=READY_TIMEOUT_S) == 1

    (line,) = second.lines()
    assert line.startswith(f"holdfast: port {address.rpartition(':')[2]} of 127.0.0.1 is taken")


@pytest.mark.parametrize("option", ["--listen", "--metrics-listen"])
@pytest.mark.parametrize("role", ["namesrv", "broker"])
def test_a_role_that_nothing_guards_serves_no_network(tmp_path: Path, role: str, option: str):
    """It says what to do, and does not begin to listen."""
    words = {"--listen": f"127.0.0.1:{free_port()}", option: f"0.0.0.0:{free_port()}"}
    child = Child(
        [HOLDFAST, "serve", role, *(word for pair in words.items() for word in pair)], name=role, folder=tmp_path
    )

    assert child.wait(timeout_s=READY_TIMEOUT_S) == 2

    assert "beyond loopback" in child.lines()[-1]
    assert "--insecure" in child.lines()[-1]


def test_metrics_beyond_loopback_need_a_token(tmp_path: Path):
    """Then a role without access control serves them to those who have it."""
    token, port = tmp_path / "token", free_port()
    token.write_text("a-token-of-scrapers")
    token.chmod(0o600)
    words = [
        "--listen",
        f"127.0.0.1:{free_port()}",
        "--metrics-listen",
        f"0.0.0.0:{port}",
        "--metrics-token",
        str(token),
    ]
    with Child([HOLDFAST, "serve", "namesrv", *words, "--json"], name="namesrv") as child:
        ready(child)

        with pytest.raises(urllib.error.HTTPError, match="401"):
            fetch(port, "/metrics")


def test_a_broker_whose_port_is_taken_ends_as_one_line(tmp_path: Path):
    """Its store is closed in order: the next start has nothing to repair."""
    words = ["serve", "broker", "--namesrv", "127.0.0.1:1", "--store", str(tmp_path / "store"), "--listen"]
    with Child([HOLDFAST, "serve", "namesrv", "--listen", "127.0.0.1:0", "--json"], name="first") as first:
        child = Child([HOLDFAST, *words, ready(first)["address"]], name="broker")

        assert child.wait(timeout_s=READY_TIMEOUT_S) == 1

    assert [line for line in child.lines() if "stopped" in line] == []
    assert "is taken" in child.lines()[-1]
    with Child([HOLDFAST, *words, f"127.0.0.1:{free_port()}", "--json"], name="again") as again:
        ready(again)
        assert [line for line in again.lines() if "recovered" in line] == []
