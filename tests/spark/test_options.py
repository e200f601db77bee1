"""Options are judged by name before anything starts."""

import pytest

from holdfast.bulk.read_options import Bound
from holdfast.model.access.client_tls import ClientTls
from holdfast.model.errors import ConfigError
from holdfast.spark.options import read_source_options
from holdfast.spark.sink_options import read_sink_options

BASE = {"namesrv": "ns:9876", "subscribe": "orders"}


def read(*, is_stream: bool = False, **options: str):
    return read_source_options({**BASE, **options}, is_stream=is_stream)


def test_names_are_read_whatever_their_case():
    """Spark does not tell upper from lower case."""
    found = read_source_options({"NameSrv": "ns:1", "SUBSCRIBE": "a, b", "minpartitions": "3"}, is_stream=False)

    assert (found.namesrv, found.topics, found.partitions_min) == ("ns:1", ("a", "b"), 3)


def test_a_batch_begins_at_the_beginning_and_a_stream_at_the_end():
    """As with Kafka."""
    assert read().start == Bound("earliest")
    assert read(is_stream=True).start == Bound("latest")


def test_times_go_before_offsets():
    """As with Kafka: the single time first, then the times, then offsets."""
    offsets = '{"orders":{"0":1}}'

    assert read(startingTimestamp="5", startingOffsetsByTimestamp=offsets).start == Bound("time", time_ms=5)
    assert read(startingOffsets="latest", startingOffsetsByTimestamp=offsets).start.kind == "times"
    assert read(startingOffsets=offsets).start == Bound("offsets", {"orders": {"0": 1}})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffset": "latest"}, "did you mean 'startingOffsets'"),
        ({"kafka.bootstrap.servers": "x"}, "no option 'kafka.bootstrap.servers': it is called 'namesrv' here"),
        ({"kafka.group.id": "x"}, "no option 'kafka.group.id': it is called 'groupId' here"),
        ({"kafka.security.protocol": "SSL"}, "option 'kafka.security.protocol' is for Kafka's client"),
        ({"topic": "orders"}, "no option 'topic': it is called 'subscribe' here"),
        ({"startingOffsets": "newest"}, "'startingOffsets' is not valid JSON"),
        ({"startingOffsets": '{"orders":[1]}'}, "'startingOffsets' must be such as"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "'endingOffsets' must be such as"),
        ({"endingOffsets": "earliest"}, "'endingOffsets' cannot be 'earliest'"),
        ({"minPartitions": "0"}, "'minPartitions' must be a whole number of at least 1"),
        ({"failOnDataLoss": "yes"}, "'failOnDataLoss' must be true or false"),
        ({"brokerTimeout": "soon"}, "'brokerTimeout' must be a time"),
        ({"assign": '{"orders":[0]}'}, "exactly one of"),
        ({"maxOffsetsPerTrigger": "5"}, "'maxOffsetsPerTrigger' is for streams only"),
        ({"startingOffsetsByTimestampStrategy": "skip"}, "must be error or latest"),
    ],
)
def test_what_is_wrong_is_refused_by_name(options: dict[str, str], said: str):
    """A user who mistypes an option must not get a query that ignores it."""
    with pytest.raises(ConfigError, match=said):
        read(**options)


def test_an_end_is_refused_in_a_stream():
    """A stream has none."""
    with pytest.raises(ConfigError, match="'endingTimestamp' is for batch queries only"):
        read(is_stream=True, endingTimestamp="5")


@pytest.mark.parametrize(
    "options", [{}, {"subscribe": " , "}, {"subscribePattern": "("}, {"assign": "[]"}, {"assign": "{}"}]
)
def test_it_must_be_said_what_to_read(options: dict[str, str]):
    """In exactly one way, and such that it means something."""
    with pytest.raises(ConfigError):
        read_source_options({"namesrv": "ns:9876", **options}, is_stream=False)


def test_the_name_servers_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    """As for every command; without any the query is refused."""
    monkeypatch.setenv("HOLDFAST_NAMESRV", "other:9876")
    assert read_source_options({"subscribe": "a"}, is_stream=False).namesrv == "other:9876"

    monkeypatch.delenv("HOLDFAST_NAMESRV")
    with pytest.raises(ConfigError, match="'namesrv' is missing"):
        read_source_options({"subscribe": "a"}, is_stream=False)


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("500ms", 0.5), ("2m", 120), ("1 h", 3600)])
def test_times_have_units(text: str, seconds: float):
    """Seconds when none is given."""
    assert read(brokerTimeout=text).patience_s == seconds


def test_source_and_sink_may_have_a_unit():
    """Without one they see all of them."""
    assert (read(unit="east").unit, read().unit) == ("east", None)
    sink = {"namesrv": "ns:9876", "topic": "orders"}
    assert read_sink_options({**sink, "unit": "east"}).unit == "east"
    assert read_sink_options(sink).unit is None


def test_the_name_of_another_system_is_refused_before_ours_is_missed(monkeypatch: pytest.MonkeyPatch):
    """Users of Kafka give its servers instead of ours."""
    monkeypatch.delenv("HOLDFAST_NAMESRV", raising=False)
    servers = {"kafka.bootstrap.servers": "b:9092"}

    with pytest.raises(ConfigError, match="it is called 'namesrv' here"):
        read_source_options({**servers, "subscribe": "orders"}, is_stream=True)
    with pytest.raises(ConfigError, match="it is called 'namesrv' here"):
        read_sink_options({**servers, "topic": "orders"})
    with pytest.raises(ConfigError, match="no option 'subscribe': it is called 'topic' here"):
        read_sink_options({"namesrv": "ns:1", "subscribe": "orders"})


def test_tls_is_used_if_an_option_or_the_environment_says_how(monkeypatch: pytest.MonkeyPatch):
    """The sink has the same options."""
    monkeypatch.delenv("HOLDFAST_TLS_CA", raising=False)
    how = {"tls.ca": "ca.pem", "tls.cert": "cert.pem", "tls.key": "key.pem", "tls.verify": "chain"}
    expected = ClientTls(ca="ca.pem", cert="cert.pem", key="key.pem", verify="chain")

    assert read(**how).tls == expected
    assert read_sink_options({"namesrv": "ns:1", "topic": "a", **how}).tls == expected
    assert read().tls is None
    assert read(**{"tls.verify": "full"}).tls == ClientTls()
    monkeypatch.setenv("HOLDFAST_TLS_CA", "env.pem")
    assert read().tls == ClientTls(ca="env.pem")
    with pytest.raises(ConfigError, match=r"'tls.verify' must be one of full, chain, none; it is 'some'"):
        read(**{"tls.verify": "some"})
    with pytest.raises(ConfigError, match="needs its key"):
        read(**{"tls.cert": "cert.pem"})
