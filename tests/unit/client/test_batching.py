"""Many messages into few requests."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.batching import can_be_batched, plan_groups
from holdfast.model.message import Message


def by_key(message: Message) -> str | None:
    return message.key


def test_messages_of_one_place_travel_together():
    """In their order."""
    messages = [Message("t", b"x", key=key) for key in "abab"]

    groups = plan_groups(messages, by_key)

    assert [(group.place, group.indexes, group.is_batch) for group in groups] == [
        ("a", [0, 2], True),
        ("b", [1, 3], True),
    ]


def test_a_group_ends_before_it_gets_too_large():
    """The next one goes on."""
    messages = [Message("t", bytes(400)) for _ in range(5)]

    groups = plan_groups(messages, by_key, bytes_max=1500)

    assert [group.indexes for group in groups] == [[0, 1], [2, 3], [4]]


def test_what_cannot_be_in_a_batch_travels_alone_and_keeps_its_place():
    """What comes after it does not travel with what came before."""
    messages = [Message("t", b"1"), Message("t", b"2", delay_level=1), Message("t", b"3"), Message("t", bytes(5000))]

    groups = plan_groups(messages, by_key, bytes_max=4000)

    assert [(group.indexes, group.is_batch) for group in groups] == [
        ([0], True),
        ([1], False),
        ([2], True),
        ([3], False),
    ]


def test_retried_messages_are_never_batched():
    """Brokers refuse them."""
    assert not can_be_batched(Message("%RETRY%g", b"x"))


@given(st.lists(st.tuples(st.sampled_from([None, "a", "b"]), st.integers(0, 3000), st.booleans()), max_size=40))
def test_everything_travels_once_and_in_order(items: list[tuple[str | None, int, bool]]):
    """Each place's messages in the order given, over all of its groups."""
    messages = [Message("t", bytes(size), key=key, delay_level=int(delayed)) for key, size, delayed in items]

    groups = plan_groups(messages, by_key, bytes_max=4000)

    assert sorted(index for group in groups for index in group.indexes) == list(range(len(messages)))
    for place in (None, "a", "b"):
        travelled = [index for group in groups if group.place == place for index in group.indexes]
        assert travelled == [index for index, message in enumerate(messages) if message.key == place]
