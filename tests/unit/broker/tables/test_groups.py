import pytest

from holdfast.broker.flow.request import Refusal
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.creation_limit import CREATED_AT_ONCE_MAX
from holdfast.broker.tables.groups import SYSTEM_GROUPS, GroupTable
from holdfast.machine.turn import Turn
from holdfast.model.group import GroupConfig
from holdfast.sim.world.disk import SimDisk
from holdfast.wire.frames.codes import ResponseCode

NOW_MS = 1_700_000_000_000


def a_table(disk: SimDisk | None = None, *, auto_create: bool = True, turn: Turn | None = None) -> GroupTable:
    turn = Turn(NOW_MS) if turn is None else turn
    options = BrokerOptions(auto_create_groups=auto_create)
    return GroupTable(disk or SimDisk(), options, turn)


def save(table: GroupTable) -> None:
    """Save the table if it changed, as the broker does every few seconds."""
    for file in table.files():
        file.save_if_changed()


def test_the_groups_of_tools_exist_from_birth() -> None:
    """Tools of every version use them without asking, even where groups are not created."""
    table = a_table(auto_create=False)

    assert all(table.find(name) is not None for name in SYSTEM_GROUPS)
    assert "TOOLS_CONSUMER" in SYSTEM_GROUPS


def test_a_group_is_made_on_its_first_use() -> None:
    """And survives a crash once it was kept."""
    disk = SimDisk()
    table = a_table(disk)

    created = table.ensure("g")
    save(table)

    assert created == GroupConfig(group_name="g")
    assert a_table(disk, auto_create=False).ensure("g") == created


def test_groups_that_come_into_being_are_kept_with_one_write() -> None:
    """Not one after the other, while everybody waits for the disk; and not again when nothing changed."""
    disk = SimDisk()
    table = a_table(disk)
    calls: list[str] = []
    disk.before = lambda call, _path: calls.append(call)

    for number in range(20):
        table.ensure(f"g{number}")
    before = list(calls)
    save(table)
    first = calls.count("replace")
    save(table)

    assert "replace" not in before
    assert (first, calls.count("replace")) == (1, 1)


def test_strangers_bring_few_groups_into_being_at_once() -> None:
    """A moment later the next ones may come; those that exist are found all the same."""
    turn = Turn(NOW_MS)
    table = a_table(turn=turn)
    made = [table.ensure(f"g{number}") for number in range(CREATED_AT_ONCE_MAX + 1)]
    again = table.ensure("g0")
    turn.now_ms += 1
    later = table.ensure("late")

    refused = made.pop()
    assert isinstance(refused, Refusal)
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert not any(isinstance(group, Refusal) for group in [*made, again, later])


def test_no_group_is_made_where_the_operator_forbids_it() -> None:
    """But the system's own are."""
    table = a_table(auto_create=False)

    assert isinstance(table.ensure("g"), Refusal)
    assert isinstance(table.ensure("CID_RMQ_SYS_NEW"), GroupConfig)


@pytest.mark.parametrize("name", ["", "g" * 256])
def test_a_name_that_cannot_be_is_not_made(name: str) -> None:
    """It comes from a stranger's heartbeat."""
    assert isinstance(a_table().ensure(name), Refusal)


def test_settings_are_kept() -> None:
    """Every field comes back after a restart, and the version has risen."""
    disk = SimDisk()
    config = GroupConfig(group_name="g", retry_max_times=3, retry_queue_nums=2, consume_broadcast_enable=False)
    table = a_table(disk)

    table.put(config)

    again = a_table(disk)
    assert again.find("g") == config
    assert (again.data_version.counter, again.data_version.timestamp) == (1, NOW_MS)


def test_a_deleted_group_is_gone_for_good() -> None:
    """Deleting it twice is fine."""
    disk = SimDisk()
    table = a_table(disk)
    table.ensure("g")

    table.delete("g")
    table.delete("g")

    assert a_table(disk).find("g") is None
