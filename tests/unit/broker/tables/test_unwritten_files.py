"""Configuration files without space: when a line is logged."""

from holdfast.broker.tables.unwritten_files import UnwrittenFiles
from holdfast.machine.effects import Effect, Log


def names(effects: list[Effect]) -> list[str]:
    return [effect.event for effect in effects if isinstance(effect, Log)]


def test_an_outage_is_logged_when_it_begins_and_when_the_last_file_is_written() -> None:
    """Not with every retry, and not with every file."""
    unwritten = UnwrittenFiles()

    logged = [
        names(effects)
        for effects in (
            unwritten.write_succeeded("a"),
            unwritten.write_failed("a", "full"),
            unwritten.write_failed("a", "full"),
            unwritten.write_failed("b", "full"),
            unwritten.write_succeeded("a"),
            unwritten.write_succeeded("b"),
            unwritten.write_succeeded("b"),
        )
    ]

    begun, over = ["no space for configuration files"], ["configuration files are written again"]
    assert logged == [[], begun, [], [], [], over, []]
    assert len(unwritten) == 0
