import pytest

from holdfast.broker.groups import SYSTEM_GROUPS, GroupTable, find_group_fault
from holdfast.broker.options import BrokerOptions
from holdfast.model.group import GroupConfig
from holdfast.sim.disk import SimDisk

NOW_MS = 1_700_000_000_000


def a_table(disk: SimDisk | None = None, *, auto_create: bool = True) -> GroupTable:
    return GroupTable(disk or SimDisk(), BrokerOptions(auto_create_groups=auto_create), NOW_MS)


def test_the_groups_of_tools_exist_from_birth() -> None:
    """Tools of every version use them without asking, even where groups are not created."""
    table = a_table(auto_create=False)

    assert all(table.find(name) is not None for name in SYSTEM_GROUPS)
    assert "TOOLS_CONSUMER" in SYSTEM_GROUPS


def test_a_group_is_made_on_its_first_use() -> None:
    """And survives a crash from then on."""
    disk = SimDisk()

    created = a_table(disk).ensure("g", NOW_MS)

    assert created == GroupConfig(group_name="g")
    assert a_table(disk, auto_create=False).ensure("g", NOW_MS) == created


def test_no_group_is_made_where_the_operator_forbids_it() -> None:
    """But the system's own are."""
    table = a_table(auto_create=False)

    assert table.ensure("g", NOW_MS) is None
    assert table.ensure("CID_RMQ_SYS_NEW", NOW_MS) is not None


@pytest.mark.parametrize("name", ["", "g" * 256])
def test_a_name_that_cannot_be_is_not_made(name: str) -> None:
    """It comes from a stranger's heartbeat."""
    assert a_table().ensure(name, NOW_MS) is None


def test_settings_are_kept() -> None:
    """Every field comes back after a restart, and the version has risen."""
    disk = SimDisk()
    config = GroupConfig(group_name="g", retry_max_times=3, retry_queue_nums=2, consume_broadcast_enable=False)
    table = a_table(disk)

    table.put(config, NOW_MS + 1)

    again = a_table(disk)
    assert again.find("g") == config
    assert (again.data_version.counter, again.data_version.timestamp) == (1, NOW_MS + 1)


def test_a_deleted_group_is_gone_for_good() -> None:
    """Deleting it twice is fine."""
    disk = SimDisk()
    table = a_table(disk)
    table.ensure("g", NOW_MS)

    table.delete("g", NOW_MS)
    table.delete("g", NOW_MS)

    assert a_table(disk).find("g") is None


@pytest.mark.parametrize(
    ("config", "part"),
    [
        (GroupConfig(group_name=""), "1 to 248"),
        (GroupConfig(group_name="a b"), "a b"),
        (GroupConfig(group_name="g", retry_queue_nums=-1), "retry queues"),
    ],
)
def test_a_group_that_cannot_be_taken_is_refused_by_name(config: GroupConfig, part: str) -> None:
    """The reason names what is wrong."""
    assert part in (find_group_fault(config) or "")


def test_a_group_without_retries_is_fine() -> None:
    """Its failed messages are simply done with."""
    assert find_group_fault(GroupConfig(group_name="g", retry_queue_nums=0)) is None
