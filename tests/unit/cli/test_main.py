"""The command as a whole: what it loads, how it fails, what it returns."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata

import pytest
from tests.support.scripted_server import ScriptedServer

from holdfast.cli.help_style import build_command
from holdfast.cli.main import build, main
from holdfast.native import DESCRIPTION
from holdfast.runtime.process.background_loop import BackgroundLoop


@pytest.fixture(autouse=True)
def _nobody_home(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """No configuration of whoever runs the tests."""
    for name in ("HOLDFAST_NAMESRV", "HOLDFAST_PROFILE", "HOLDFAST_CONFIG", "HOLDFAST_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line on standard error."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_an_unknown_noun_is_wrong_usage_with_a_guess(capsys: pytest.CaptureFixture[str]):
    """One line, status 2."""
    assert main(["topc", "list"]) == 2
    assert "Did you mean 'topic'" in said(capsys)


def test_an_unknown_verb_is_wrong_usage_with_a_guess(capsys: pytest.CaptureFixture[str]):
    """One line, status 2."""
    assert main(["topic", "lst"]) == 2
    assert "Did you mean 'list'" in said(capsys)


def test_an_unknown_option_is_wrong_usage_with_the_nearest(capsys: pytest.CaptureFixture[str]):
    """One line, status 2, and where to read on."""
    assert main(["topic", "create", "t", "--quees", "3"]) == 2
    line = said(capsys)
    assert "did you mean '--queues'" in line
    assert "holdfast topic create --help" in line


def test_a_missing_argument_is_wrong_usage(capsys: pytest.CaptureFixture[str]):
    """One line, status 2."""
    assert main(["topic", "create"]) == 2
    assert "Missing argument 'TOPIC'" in said(capsys)


def test_a_number_that_is_none_is_wrong_usage(capsys: pytest.CaptureFixture[str]):
    """One line, status 2."""
    assert main(["topic", "create", "t", "--queues", "many"]) == 2
    assert "--queues" in said(capsys)


def test_an_address_that_is_none_is_wrong_usage(capsys: pytest.CaptureFixture[str]):
    """Checked before anybody is dialled."""
    assert main(["topic", "list", "--namesrv", "localhost"]) == 2
    assert "write host:port" in said(capsys)


def test_a_cluster_that_is_not_there_says_what_to_do(capsys: pytest.CaptureFixture[str]):
    """One line, status 1: where we looked, and the two ways out."""
    assert main(["topic", "list", "--namesrv", "127.0.0.1:1"]) == 1
    line = said(capsys)
    assert "no name server answers at 127.0.0.1:1 (--namesrv)" in line
    assert "holdfast up" in line


def test_a_broker_in_place_of_a_name_server_is_recognised(capsys: pytest.CaptureFixture[str]):
    """The most usual mistake with addresses: the hint of the client library reaches the terminal."""
    loop = BackgroundLoop("servers")

    async def listen() -> ScriptedServer:
        server = ScriptedServer()  # It answers as any broker does what only name servers know.
        await server.listen(0)
        return server

    server = loop.run(listen())
    try:
        assert main(["topic", "list", "--namesrv", server.address]) == 1
    finally:
        loop.run(server.stop())
    assert f"{server.address} is no name server but perhaps a broker; give the address of a name server" in said(capsys)


def test_a_variable_that_has_no_effect_is_told_once_whatever_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """On stderr: what a program reads stays whole. Kubernetes' names and those that are known are no reason."""
    for name in ("HOLDFAST_PROFILE", "HOLDFAST_MQ_SERVICE_HOST", "HOLDFAST_MQ_PORT_9876_TCP", "HOLDFAST_FLUSH"):
        monkeypatch.setenv(name, "")
    assert main(["profile", "list", "--json"]) == 0
    assert capsys.readouterr().err == ""

    monkeypatch.setenv("HOLDFAST_NAMESRVV", "ns:9876")
    monkeypatch.setenv("HOLDFAST_DAAT", "/d")
    for words in (["profile", "list", "--json"], ["profile", "path"], ["--version"], ["topic", "lisst"]):
        main(words)
        printed = capsys.readouterr()
        (line,) = [line for line in printed.err.splitlines() if line.startswith("warning: ")]
        assert "unknown variable HOLDFAST_NAMESRVV has no effect; did you mean 'HOLDFAST_NAMESRV'?" in line
        assert "HOLDFAST_DAAT" in line
        assert "HOLDFAST_DAAT" not in printed.out
    main(["profile", "list", "--json"])
    json.loads(capsys.readouterr().out)


def test_a_shell_that_completes_words_is_told_of_no_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Its user would find the warning among the words."""
    monkeypatch.setenv("HOLDFAST_NAMESRVV", "ns:9876")
    monkeypatch.setenv("_HOLDFAST_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "holdfast to")
    monkeypatch.setenv("COMP_CWORD", "1")

    with pytest.raises(SystemExit):
        main([])

    assert "HOLDFAST_NAMESRVV" not in capsys.readouterr().err


def test_debug_lets_the_failure_through():
    """With --debug the traceback is what is wanted."""
    with pytest.raises(Exception, match="no name server answers"):
        main(["topic", "list", "--namesrv", "127.0.0.1:1", "--debug"])


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]):
    """And whether accelerated functions are compiled, nothing else."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"holdfast {metadata.version('holdfast')}, {DESCRIPTION}\n"


def every_command() -> list[list[str]]:
    """Return the words of every command, of every noun, and of the root."""

    def below(command: object, words: list[str]) -> Iterator[list[str]]:
        yield words
        for name, each in getattr(command, "commands", {}).items():
            yield from below(each, [*words, name])

    return list(below(build_command(build([])), []))


@pytest.mark.parametrize("words", every_command(), ids=" ".join)
def test_every_command_has_help_under_both_names(words: list[str], capsys: pytest.CaptureFixture[str]):
    """`-h` as well as `--help`: status 0, on standard output; placeholders for people instead of Python's types."""
    assert main([*words, "--help"]) == 0
    text = capsys.readouterr().out
    assert main([*words, "-h"]) == 0

    assert capsys.readouterr().out == text
    options = text.partition("─ Options ─")[2]
    assert "--help" in options
    assert not re.search("<(bool|int|str|float)", options)


def test_a_role_does_not_load_what_it_does_not_need():
    """`serve namesrv` starts without client, broker, Spark, HTTP or tables: its start is short."""
    script = (
        "import sys\n"
        "from holdfast.cli.main import main\n"
        "main(['serve', 'namesrv', '--help'])\n"
        "import holdfast.nameserver.service\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    loaded = set(done.stderr.split())
    for unwanted in ("holdfast.client", "holdfast.broker.core", "holdfast.admin", "prometheus_client", "pyspark"):
        assert unwanted not in loaded
