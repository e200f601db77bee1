"""Tables before and after, without moving anything."""

from tests.support.cluster.scripted_topics import ScriptedTopics

from holdfast.admin.previews import Preview, preview_moves
from holdfast.admin.static_topics import StaticTopics
from holdfast.model.leader_planning import PlannedMove
from holdfast.model.mapping import LogicalQueue, new_logical_queue


async def preview(
    queues: list[LogicalQueue], moves: list[PlannedMove], ends: dict[int, int], *, forced: bool = False
) -> Preview:
    cluster = ScriptedTopics(brokers_by_name={"broker1": "a:1", "broker2": "b:1"})
    cluster.put_queues("t", queues)
    topic = (await StaticTopics(cluster).read()).topics["t"]
    return preview_moves(topic, moves, ends, forced=forced)


def shown(found: Preview) -> list[tuple[str, int, str, str]]:
    return [(row.broker, row.queue_id, row.label, str(row.status)) for row in found.after]


def the_first_table() -> list[LogicalQueue]:
    places = [("broker1", 0), ("broker1", 1), ("broker2", 0), ("broker2", 1)]
    return [new_logical_queue(number, *place) for number, place in enumerate(places)]


async def test_the_second_table_of_the_proposal_is_foreseen():
    """Logical queue 0 goes to broker2, having held 0 to 100."""
    found = await preview(the_first_table(), [PlannedMove("t", 0, "broker1", "broker2")], {0: 101})

    assert shown(found) == [
        ("broker1", 0, "0(0-100)", "ReadOnly"),
        ("broker1", 1, "1", "Normal"),
        ("broker2", 0, "2", "Normal"),
        ("broker2", 1, "3", "Normal"),
        ("broker2", 2, "0(101-)", "Normal"),
    ]


async def test_an_expired_queue_is_used_again():
    """As the move itself will do it."""
    moved = the_first_table()[0].prepare("broker2", 2).seal(101).open_next().expire(0, 0)

    found = await preview([moved, *the_first_table()[1:]], [PlannedMove("t", 0, "broker2", "broker1")], {0: 201})

    assert ("broker1", 0, "0(201-)", "Normal") in shown(found)
    assert ("broker2", 2, "0(101-200)", "ReadOnly") in shown(found)


async def test_many_queues_get_physical_queues_of_their_own():
    """Two that go to one broker do not share one."""
    moves = [PlannedMove("t", queue, "broker1", "broker2") for queue in (0, 1)]

    found = await preview(the_first_table(), moves, {0: 5, 1: 6})

    assert ("broker2", 2, "0(5-)", "Normal") in shown(found)
    assert ("broker2", 3, "1(6-)", "Normal") in shown(found)


async def test_an_unknown_end_is_not_invented():
    """The next home is shown as prepared."""
    found = await preview(the_first_table(), [PlannedMove("t", 0, "broker1", "broker2")], {})

    assert ("broker2", 2, "0(prepared)", "ReadOnly") in shown(found)


async def test_a_forced_move_shows_the_gap():
    """The old home has no known end, the new one begins 2^40 above what is known."""
    found = await preview(the_first_table(), [PlannedMove("t", 0, "broker1", "broker2")], {}, forced=True)

    assert ("broker1", 0, "0(0-?)", "ReadOnly") in shown(found)
    assert ("broker2", 2, f"0({2**40}-)", "Normal") in shown(found)


async def test_moves_of_other_topics_are_passed_over():
    """A plan of the whole cluster is shown topic by topic."""
    found = await preview(the_first_table(), [PlannedMove("other", 0, "broker1", "broker2")], {})

    assert found.before == found.after
