"""Carrying out changes of static topics."""

import pytest
from tests.support.cluster.scripted import Reply, Script, ScriptedRequest
from tests.support.cluster.scripted_topics import ScriptedTopics, plan_repair

from holdfast.admin.cluster_access import NotAllowed, PartlyDone
from holdfast.admin.static_changes import StaticChanges
from holdfast.admin.static_topics import ClusterMappings, StaticTopics
from holdfast.admin.topic_plans import convert_plan, create_plan
from holdfast.model.errors import BrokerRefused
from holdfast.model.topic import TopicConfig
from holdfast.wire.frames.codes import RequestCode

THREE = {"a": "a:1", "b": "b:1", "c": "c:1"}
CONFIG = TopicConfig(name="t", attributes={"+x": "1"})


async def a_view(cluster: ScriptedTopics) -> ClusterMappings:
    return await StaticTopics(cluster).read()


async def test_every_broker_gets_its_own_record():
    """As a 513 that Java brokers read too; the name server shows the whole before it is called done."""
    cluster = ScriptedTopics(brokers_by_name=THREE)
    plan = create_plan(await a_view(cluster), CONFIG, 3, targets=["a", "b"], now_ms=7)

    await StaticChanges(cluster).apply(plan)

    first, _, third = cluster.requests_of(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC)
    assert (first.fields["writeQueueNums"], first.fields["perm"], first.fields["force"]) == ("2", "6", "false")
    assert b'"hostedQueues":{"0":[' in first.body
    assert (third.fields["writeQueueNums"], b'"hostedQueues":{}' in third.body) == ("0", True)
    assert cluster.leader("t", 1) == "b"


async def test_a_change_is_done_when_the_name_server_shows_the_whole():
    """It withholds what is not whole, or serves what was before: neither counts."""
    cluster = ScriptedTopics()
    plan = create_plan(await a_view(cluster), CONFIG, 2, now_ms=7)
    whole = cluster.scripts[RequestCode.GET_ROUTEINFO_BY_TOPIC]
    answers: list[Script] = [lambda _: 2, lambda _: 17, lambda _: b'{"brokerDatas":[],"queueDatas":[]}', whole]
    asked: list[int] = []

    def route(question: ScriptedRequest) -> Reply:
        asked.append(len(answers))
        return (answers.pop(0) if len(answers) > 1 else answers[0])(question)

    cluster.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, route)

    await StaticChanges(cluster).apply(plan)

    assert asked == [4, 3, 2, 1]


async def test_a_topic_is_looked_for_where_it_is_fixed():
    """Another cluster has one of the name, with more queues; nobody had to say which unit is looked at."""
    cluster = ScriptedTopics(clusters={"a": "east", "b": "west"})
    cluster.put_topic("t", {0: "a", 1: "a", 2: "a"}, scope="east")
    plan = create_plan(await a_view(cluster), CONFIG, 2, scope="west", now_ms=7)

    await StaticChanges(cluster).apply(plan)

    assert {asked.fields.get("scope") for asked in cluster.requests_of(RequestCode.GET_ROUTEINFO_BY_TOPIC)} >= {"west"}


async def test_a_change_that_only_some_took_says_who_and_what_to_run():
    """The repair then finishes it."""
    cluster = ScriptedTopics(brokers_by_name=THREE, refusing={"b": "disk full"})
    plan = create_plan(await a_view(cluster), CONFIG, 3, now_ms=7)
    changes = StaticChanges(cluster)

    with pytest.raises(
        PartlyDone, match=r"a, c applied the change of t, b did not: .*disk full.*holdfast queue repair t"
    ):
        await changes.apply(plan)

    cluster.refusing.clear()
    view = await a_view(cluster)
    await changes.repair(await plan_repair(cluster, view, now_ms=9), view)
    assert (await a_view(cluster)).topics["t"].merged.is_complete


async def test_a_change_that_nobody_took_is_just_refused():
    """Nothing to repair."""
    cluster = ScriptedTopics(refusing={"a": "no", "b": "no"})
    plan = create_plan(await a_view(cluster), CONFIG, 2, now_ms=7)

    with pytest.raises(BrokerRefused, match="no"):
        await StaticChanges(cluster).apply(plan)


async def test_a_late_stamp_is_put():
    """A broker that came later learns epoch and number of queues."""
    cluster = ScriptedTopics(brokers_by_name=THREE)
    cluster.put_topic("t", {0: "a", 1: "b"}, epoch=5)
    del cluster.records["c"]["t"]
    view = await a_view(cluster)

    await StaticChanges(cluster).repair(await plan_repair(cluster, view), view)

    assert (cluster.records["c"]["t"].epoch, cluster.records["c"]["t"].total) == (5, 2)


async def test_a_queue_is_forgotten_by_all_who_record_it():
    """And by nobody when one of them could not be told."""
    cluster = ScriptedTopics()
    cluster.put_topic("t", {0: "a", 1: "b"})
    view = await a_view(cluster)

    assert await StaticChanges(cluster).unset(view, view.topics["t"], 1) == ["b"]
    assert (await a_view(cluster)).topics["t"].merged.unled == [1]
    with pytest.raises(NotAllowed, match="nothing to forget"):
        await StaticChanges(cluster).unset(await a_view(cluster), (await a_view(cluster)).topics["t"], 1)


async def test_a_static_topic_is_deleted_wherever_it_is_recorded():
    """Also on brokers that only have its stamp; a broker that is away would bring it back."""
    cluster = ScriptedTopics(brokers_by_name=THREE)
    cluster.put_topic("t", {0: "a"})
    view = await a_view(cluster)

    cluster.kill("c")
    late = await a_view(cluster)
    with pytest.raises(NotAllowed, match="c does not answer"):
        await StaticChanges(cluster).delete(late, late.topics["t"])
    cluster.restart(*cluster.dead)
    await StaticChanges(cluster).delete(view, view.topics["t"])

    assert [asked.address for asked in cluster.requests_of(RequestCode.DELETE_TOPIC_IN_BROKER)] == ["a:1", "b:1", "c:1"]
    assert len(cluster.requests_of(RequestCode.DELETE_TOPIC_IN_NAMESRV)) == 1


async def test_a_broker_that_no_longer_has_a_topic_does_not_stop_its_deletion():
    """An earlier attempt reached it. Any other refusal is reported."""
    cluster = ScriptedTopics(brokers_by_name=THREE)
    cluster.put_topic("t", {0: "a", 1: "b"})
    view = await a_view(cluster)
    codes = {"a:1": 17, "b:1": 0, "c:1": 0}
    cluster.on(RequestCode.DELETE_TOPIC_IN_BROKER, lambda asked: codes[asked.address])

    deleted = await StaticChanges(cluster).delete(view, view.topics["t"])
    codes["b:1"] = 1
    with pytest.raises(PartlyDone, match="b did not"):
        await StaticChanges(cluster).delete(view, view.topics["t"])

    assert {"a", "b"} <= set(deleted)


async def test_a_topic_whose_leader_is_down_is_deleted_by_force_only():
    """Also when the name server has forgotten that broker: it would bring the topic back."""
    cluster = ScriptedTopics(brokers_by_name=THREE, forgotten={"b"})
    cluster.put_topic("t", {0: "a", 1: "b"})
    view = await a_view(cluster)

    with pytest.raises(NotAllowed, match="b does not answer and would bring t back"):
        await StaticChanges(cluster).delete(view, view.topics["t"])
    deleted = await StaticChanges(cluster).delete(view, view.topics["t"], force=True)

    assert deleted == ["a", "c"]
    assert len(cluster.requests_of(RequestCode.DELETE_TOPIC_IN_NAMESRV)) == 1


async def test_committed_offsets_follow_their_queues_into_logical_numbers():
    """Physical queue 0 of the second broker becomes logical queue 2, and groups go on there."""
    cluster = ScriptedTopics()
    cluster.put_normal("t", {"a": 2, "b": 1})
    cluster.offsets["b", "g", "t", 0] = 41
    view = await a_view(cluster)
    plan = convert_plan(view, CONFIG, {"a": 2, "b": 1}, now_ms=1)
    changes = StaticChanges(cluster)

    committed = await changes.read_committed(plan, view, ["g"])
    assert committed == {"g": {2: 41}}
    await changes.write_committed(plan, view, committed)

    assert cluster.offsets["b", "g", "t", 2] == 41


async def test_writes_are_withdrawn_and_can_be_restored():
    """A conversion that fails leaves the topic as it was."""
    cluster = ScriptedTopics()
    cluster.put_normal("t", {"a": 2})
    configs = {"a": cluster.configs["a"]["t"]}
    hosts = {broker.name: broker for broker in await cluster.masters(names=["a"])}

    await StaticChanges(cluster).withdraw_writes(hosts, configs)
    withdrawn = cluster.configs["a"]["t"]
    await StaticChanges(cluster).restore(hosts, configs)

    assert (withdrawn.permission, withdrawn.write_queues) == (4, 2)
    assert cluster.configs["a"]["t"].permission == 6
