"""Which groups have dead letters."""

from tests.support.cluster.scripted_admin import scripted_admin
from tests.support.cluster.scripted_topics import ScriptedTopics

from holdfast.admin.combined.dead_letters import list_dead_letters
from holdfast.wire.frames.codes import RequestCode


async def test_dead_letters_are_counted_by_group():
    """Over all brokers; other topics do not count, and a broker that is down is a fault of one group only."""
    cluster = ScriptedTopics(topics={"%DLQ%billing": {"a": 1, "b": 1}, "%DLQ%audit": {"b": 1}, "orders": {"a": 1}})
    cluster.stats = {("a", "%DLQ%billing"): [(0, 2, 5)], ("b", "%DLQ%billing"): [(0, 0, 1)]}
    cluster.on(
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        lambda _: b'{"topicList":["%DLQ%audit","%DLQ%billing","orders"]}',
    )
    cluster.on(RequestCode.VIEW_BROKER_STATS_DATA, lambda _: b"{}")

    _, billing = await list_dead_letters(scripted_admin(cluster))
    cluster.kill("b")
    audit, _ = await list_dead_letters(scripted_admin(cluster))

    assert (billing.group, billing.messages, billing.last_stored_ms) == ("billing", 4, 5000)
    assert (audit.group, audit.messages) == ("audit", None)
    assert "cannot connect" in str(audit.fault)
