"""How the whole cluster looks to people."""

from holdfast.admin.route_push import RoutePushStatus
from holdfast.cli.cluster import push_table
from holdfast.wire.push_state import ReadingsTold


def test_name_servers_are_shown_with_what_they_do_about_changed_routes():
    """Pace with reason and unknown readings; a Java one does not push; one that is silent may do anything."""
    table = push_table(
        [
            RoutePushStatus(
                address="a:1",
                pushes=True,
                watching_clients=3,
                watched_topics=2,
                pending_clients=1,
                pace="paused",
                reason="load 95 %",
                readings=ReadingsTold(memory=41.0, load=95.0),
            ),
            RoutePushStatus(address="b:1", pushes=True, pace="every second", reason=""),
            RoutePushStatus(address="java:1"),
            RoutePushStatus(address="dead:1", fault="cannot connect"),
        ]
    )

    assert [list(row) for row in table.rows] == [
        ["a:1", 3, 2, 1, "paused: load 95 %", "41 %", "95 %", "unknown"],
        ["b:1", None, None, None, "every second", "unknown", "unknown", "unknown"],
        ["java:1", None, None, None, "does not push", None, None, None],
        ["dead:1", None, None, None, "unknown: cannot connect", None, None, None],
    ]
