"""Records of users and rules that a server of the domain made up."""

from __future__ import annotations

from tests.support.access import Users, guarded_name_server, log_in_as_server, store_of

from holdfast.model.access.directory import VERSION_MAX, Record
from holdfast.model.access.user import User, UserKind
from holdfast.wire.access.records import encode_records


def test_records_from_far_in_the_future_are_not_accepted() -> None:
    """Nobody could ever change such a record again: no higher version could be written to the file."""
    server = guarded_name_server()
    Users(server).add("root", is_super=True)
    channel = server.connect()
    log_in_as_server(server, channel)
    forged = Record("user/root", VERSION_MAX, User("root", ("an-evil-secret",), UserKind.SUPER))
    near = Record("user/ann", server.now_ms + 86_400_000, User("ann", ("another-secret",)))

    answer = server.request(7062, {"hf.digest": ""}, body=encode_records([forged, near]), channel=channel)

    assert answer.code == 0
    directory = store_of(server).directory
    assert [record.version for record in directory.records if record.key == "user/root"] < [VERSION_MAX]
    assert directory.find_user("ann") is not None
    assert "record of users and rules refused" in server.logged()
