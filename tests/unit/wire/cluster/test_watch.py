"""Names of topics in one field, and in several requests where they are many."""

from holdfast.wire.cluster.watch import TEXT_MAX, join_topics, split_topics


def test_names_are_joined_and_split_again():
    """In their order."""
    (text,) = join_topics(["orders", "bills", "%RETRY%g"])

    assert text == "orders;bills;%RETRY%g"
    assert split_topics(text) == ["orders", "bills", "%RETRY%g"]


def test_more_than_a_field_takes_goes_in_several():
    """Measured in bytes, not in characters; nothing is lost and nothing repeated."""
    names = [f"{number:04}-{'ü' * 100}" for number in range(1000)]

    texts = list(join_topics(names))

    assert [name for text in texts for name in split_topics(text)] == names
    assert len(texts) == 4
    assert all(len(text.encode()) <= TEXT_MAX for text in texts)


def test_nothing_is_no_request_and_no_topic():
    """Also where empty names stand between the semicolons."""
    assert list(join_topics([])) == []
    assert split_topics(None) == split_topics("") == split_topics(";;") == []
    assert split_topics(";a;;b;") == ["a", "b"]
