"""What commands share."""

from pathlib import Path

import pytest
import typer

from holdfast.cli.main import main
from holdfast.cli.profiles import ChosenCluster
from holdfast.cli.session import NotConfirmed, Session, cluster_command, parse_pairs
from holdfast.model.errors import ConfigError


@pytest.fixture
def session() -> Session:
    return Session(cluster=ChosenCluster("127.0.0.1:1", "--namesrv", None), timeout_s=1, as_json=False)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Somebody at a terminal who says no; the questions they were asked."""
    questions: list[str] = []

    def confirm(question: str, **options: object) -> bool:
        del options
        questions.append(question)
        return False

    monkeypatch.setattr(typer, "confirm", confirm)
    monkeypatch.setattr("holdfast.cli.session.is_interactive", lambda: True)
    return questions


def test_a_person_is_asked_and_can_say_no(session: Session, asked: list[str]):
    """At a terminal nothing is destroyed without a yes."""
    with pytest.raises(NotConfirmed, match="nothing was changed"):
        session.confirm("Delete it?", yes=False)

    assert asked == ["Delete it?"]


def test_yes_is_not_asked_again(session: Session, asked: list[str]):
    """--yes is the answer."""
    session.confirm("Delete it?", yes=True)

    assert asked == []


def test_a_script_is_not_asked(session: Session, asked: list[str], monkeypatch: pytest.MonkeyPatch):
    """Without a terminal nobody can answer: the author of the script has decided."""
    monkeypatch.setattr("holdfast.cli.session.is_interactive", lambda: False)

    session.confirm("Delete it?", yes=False)

    assert asked == []


def test_every_command_gets_the_common_options():
    """The function has only its own parameters; the command has both."""
    app = typer.Typer()
    seen: list[tuple[str, bool, int]] = []

    @cluster_command(app, "look")
    def look(session: Session, *, count: int = 1) -> None:
        """Look."""
        seen.append((session.namesrv, session.as_json, count))

    command = typer.main.get_command(app)
    command.main(["--namesrv", "h:1", "--json", "--count", "3"], standalone_mode=False)

    assert seen == [("h:1", True, 3)]


PROFILES = """
[profiles.staging]
namesrv = "10.0.0.4:9876"
"""


@pytest.fixture
def _staging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile of one cluster, and an environment that names another."""
    file = tmp_path / "holdfast" / "config.toml"
    file.parent.mkdir()
    file.write_text(PROFILES, encoding="utf-8")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_NAMESRV", "v:1")


@pytest.mark.usefixtures("_staging")
@pytest.mark.parametrize(
    ("words", "asked"), [([], "v:1"), (["--profile", "staging"], "10.0.0.4:9876"), (["--namesrv", "h:1"], "h:1")]
)
def test_a_flag_beats_the_environment(words: list[str], asked: str):
    """HOLDFAST_NAMESRV holds only while the command line names no cluster, by either flag."""
    app = typer.Typer()
    seen: list[str] = []

    @cluster_command(app, "look")
    def look(session: Session) -> None:
        """Look."""
        seen.append(session.namesrv)

    typer.main.get_command(app).main(words, standalone_mode=False)

    assert seen == [asked]


@pytest.mark.usefixtures("_staging")
@pytest.mark.parametrize("words", [["topic", "list"], ["send", "t", "x"], ["tail", "t"], ["bench"], ["dr", "status"]])
def test_no_command_falls_back_to_another_cluster(words: list[str], capsys: pytest.CaptureFixture[str]):
    """A profile that does not exist, and flags that contradict each other, are wrong usage in every command."""
    assert main([*words, "--profile", "stagng"]) == 2
    assert "no profile 'stagng' (--profile); known are staging" in capsys.readouterr().err

    assert main([*words, "--profile", "staging", "--namesrv", "h:1"]) == 2
    assert "name different clusters" in capsys.readouterr().err


@pytest.mark.usefixtures("_staging")
def test_a_backfill_follows_the_same_rule(capsys: pytest.CaptureFixture[str]):
    """The one job of the pipeline that writes to a cluster."""
    words = ["pipeline", "backfill", "archive", "--to", "t", "--state", "s", "--profile"]

    assert main([*words, "stagng"]) == 2
    assert "no profile 'stagng' (--profile)" in capsys.readouterr().err
    assert main([*words, "staging", "--namesrv", "h:1"]) == 2
    assert "name different clusters" in capsys.readouterr().err


def test_a_timeout_of_nothing_is_refused():
    """It would fail every question."""
    app = typer.Typer()
    cluster_command(app, "look")(lambda session: None)  # type: ignore[misc]

    with pytest.raises(ConfigError, match="--timeout"):
        typer.main.get_command(app).main(["--timeout", "0"], standalone_mode=False)


def test_pairs_are_name_and_value():
    """A value may have an equals sign; a pair without one is refused."""
    assert parse_pairs(["a=1", "b=c=d"], option="--property") == {"a": "1", "b": "c=d"}
    with pytest.raises(ConfigError, match="--property 'x' is not NAME=VALUE"):
        parse_pairs(["x"], option="--property")
