from holdfast.broker.tables.creation_limit import CREATED_AT_ONCE_MAX, CreationLimit


def test_a_moment_has_room_for_so_many_and_the_next_for_as_many_again() -> None:
    """The clock of the events is what separates moments; it may also go back."""
    limit = CreationLimit()

    taken = [[limit.try_acquire(now_ms) for _ in range(CREATED_AT_ONCE_MAX + 3)] for now_ms in (5, 6, 5)]

    assert taken == [[True] * CREATED_AT_ONCE_MAX + [False] * 3] * 3
