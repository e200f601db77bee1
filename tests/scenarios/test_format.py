"""The transcripts' own behaviour: what a wrong file, a wrong command and a changed output look like."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.transcript import CommandError, TranscriptError, difference, read_transcript, run
from tests.support.transcript_commands import Commands, usages

README = Path(__file__).with_name("README.md")


def write(folder: Path, text: str) -> Path:
    path = folder / "story.txt"
    path.write_text(text, encoding="utf-8")
    return path


def run_file(path: Path) -> str:
    return run(read_transcript(path), Commands().execute)


def test_a_missing_separator_is_named_with_its_line(tmp_path: Path):
    path = write(tmp_path, "# A story.\nstart a\n----\nok\n\nwait 5s\n")

    with pytest.raises(TranscriptError, match=re.escape(f"{path}:6: ---- must follow the command 'wait'")):
        read_transcript(path)


def test_an_unknown_command_is_named_with_its_line_and_the_commands_that_exist(tmp_path: Path):
    path = write(tmp_path, "wait 5s\n----\nok\n\nsned orders 0 a\n----\n")

    with pytest.raises(TranscriptError, match=re.escape(f"{path}:5: no command 'sned'; there are bounds, cluster, ")):
        run_file(path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("wait", "'wait' is not: wait TIME"),
        ("wait 5s 6s", "'wait 5s 6s' is not: wait TIME"),
        ("wait soon", "'soon' is not a time, such as 20ms, 5s, 2m or 1h"),
        ("mend all=yes", "'mend all=yes' is not: mend"),
        ("send orders zero a", "'zero' is not a number"),
        ("send orders 0", "'send' needs keys or count=N"),
        ("kill a", "no server 'a'; there are namesrv"),
        ("kill namesrv when=namesrv:OPEN", "no request 'OPEN'; there are "),
        ("bounds orders 0 via=b", "no server 'b'; there are namesrv"),
        ("outcome orders 0", "no traffic of queue 0 of orders was begun"),
        ("send orders 'a", "No closing quotation"),
        ("send nothing 0 a", "a client finds no route of nothing, refused 17 TOPIC_NOT_EXIST"),
    ],
)
def test_a_command_that_is_written_wrongly_says_how_to_write_it(line: str, reason: str):
    with pytest.raises(CommandError, match=re.escape(reason)):
        Commands().execute(line)


def test_the_difference_names_the_first_changed_line_and_shows_both_outputs(tmp_path: Path):
    path = write(tmp_path, "# A story.\nstart a\n----\nok\n\nbounds orders 0 via=a\n----\nmin 7\n")
    transcript = read_transcript(path)

    shown = difference(transcript, run(transcript, Commands().execute))

    assert shown.startswith(f"{path}:8: ")
    assert "-min 7" in shown
    assert "+min 0" in shown


def test_rewriting_keeps_comments_and_a_second_run_finds_no_difference(tmp_path: Path):
    path = write(
        tmp_path, "# A story.\n\nstart a b\n----\n\n# What happens.\nmapping orders\n----\nwrong\n\n# The end.\n"
    )
    path.write_text(run_file(path), encoding="utf-8")

    text = path.read_text(encoding="utf-8")
    assert text.startswith("# A story.\n\nstart a b\n----\nok\n\n# What happens.\nmapping orders\n----\nat  queue")
    assert text.endswith("\n\n# The end.\n")
    assert difference(read_transcript(path), run_file(path)) == ""


def test_the_readme_lists_every_command():
    """In the words in which an error message shows it."""
    listed = re.findall(r"^\| `([^`]+)` \|", README.read_text(encoding="utf-8"), re.MULTILINE)

    assert sorted(listed) == sorted([*usages(), "holdfast ..."])
