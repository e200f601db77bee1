"""The topics of which it is known that they do not exist."""

from holdfast.client.routes.missing_topics import MissingTopics


def test_the_oldest_goes_when_there_is_no_room():
    """One that is missing still keeps its age: who asks often takes nobody's place."""
    missing = MissingTopics(limit=2)
    assert [missing.add(topic) for topic in ("a", "b", "a", "c")] == [[], [], [], ["a"]]

    assert ["a" in missing, "b" in missing, "c" in missing, len(missing)] == [False, True, True, 2]


def test_what_is_there_again_takes_no_room():
    """Nor does what nobody asks for."""
    missing = MissingTopics(limit=1)
    missing.add("a")

    missing.discard("a")
    missing.discard("never")

    assert missing.add("b") == []


def test_there_may_be_room_for_all():
    """Consumers wait for the topics that they subscribe to, however many."""
    missing = MissingTopics()

    assert all(missing.add(f"t{number}") == [] for number in range(20_000))
    assert len(missing) == 20_000
