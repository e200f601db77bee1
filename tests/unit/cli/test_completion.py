"""What the shell offers."""

import pytest

from holdfast.cli.main import main
from holdfast.model.errors import HoldfastError


def press_tab(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """Ask for completions of *line* as bash does."""
    monkeypatch.setenv("_HOLDFAST_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split())))
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0


@pytest.mark.parametrize("line", ["holdfast topic describe", "holdfast group describe", "holdfast broker describe"])
@pytest.mark.parametrize("namesrv", ["127.0.0.1:1", "no address"])
def test_completion_never_complains(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], line: str, namesrv: str
):
    """Without a cluster, or with a wrong address, there is nothing to offer and nothing to say."""
    monkeypatch.setenv("HOLDFAST_NAMESRV", namesrv)

    press_tab(monkeypatch, line)

    assert capfd.readouterr().out.strip() == ""


def test_completion_asks_the_cluster_that_the_command_is_for(monkeypatch: pytest.MonkeyPatch):
    """Names of another cluster would be offered for this one."""
    asked: list[str] = []

    def admin(namesrv: str, **options: object) -> None:
        del options
        asked.append(namesrv)
        raise HoldfastError("enough is known")

    monkeypatch.setattr("holdfast.admin.operations.Admin", admin)
    monkeypatch.setenv("HOLDFAST_NAMESRV", "v:1")

    press_tab(monkeypatch, "holdfast topic describe")
    press_tab(monkeypatch, "holdfast topic describe --namesrv h:1")

    assert asked == ["v:1", "h:1"]
