"""The changes of one event: collected until they are published."""

from holdfast.nameserver.notices import ChangeCause
from holdfast.nameserver.route_changes import RouteChanges


def test_changes_add_up_until_they_are_cleared():
    """Components add to them in any order, and each event begins without any."""
    changes = RouteChanges()
    changes.add(["orders"])
    changes.add(iter(["bills", "orders"]))
    changes.cause = ChangeCause.BROKER
    changes.add_all(is_urgent=True)
    changes.add_all()

    assert (changes.topics, changes.are_all, changes.is_urgent) == ({"orders", "bills"}, True, True)

    published = changes.topics
    changes.clear()

    assert (changes.topics, changes.cause, changes.are_all, changes.is_urgent) == (
        set(),
        ChangeCause.TOPIC,
        False,
        False,
    )
    assert published == {"orders", "bills"}, "the caller may keep the topics"
