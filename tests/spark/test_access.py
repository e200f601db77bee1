"""A query that acts as a user: tasks get the secret, and no plan shows it."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.conftest import Read, SparkCluster, numbers_of
from tests.support.cluster.operator import CommandResult, run_in_process
from tests.support.cluster.up import Up

from holdfast import Message, blocking
from holdfast.client.access.credentials_options import CredentialsOptions
from holdfast.model.errors import ConfigError
from holdfast.spark.options import read_source_options
from holdfast.spark.sink_options import read_sink_options

SECRET = "tops3cret"
SOURCE = {"namesrv": "ns:1", "subscribe": "t"}
SINK = {"namesrv": "ns:1", "topic": "t"}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOLDFAST_ACCESS_KEY", "HOLDFAST_SECRET_KEY", "HOLDFAST_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)


def credentials_of(**options: str) -> CredentialsOptions | None:
    """Return the user that both the source and the sink find in their options."""
    source = read_source_options({**SOURCE, **options}, is_stream=True)
    sink = read_sink_options({**SINK, **options})
    assert source.credentials == sink.credentials
    assert SECRET not in f"{source!r} {sink!r}"
    return source.credentials


def test_options_name_the_user_and_the_secret_or_its_file():
    """Both ends have the same options."""
    assert credentials_of() is None
    assert credentials_of(accessKey="ann", secretKey=SECRET, auth="login") == CredentialsOptions(
        access_key="ann", secret_key=SECRET, mode="login"
    )
    assert credentials_of(ACCESSKEY="ann", secretfile="/s", securityToken="tok") == CredentialsOptions(
        access_key="ann", secret_file="/s", security_token="tok"
    )


def test_the_environment_of_the_driver_names_the_user_if_no_option_does(monkeypatch: pytest.MonkeyPatch):
    """Options win as a whole: the variable never adds a secret to another user."""
    monkeypatch.setenv("HOLDFAST_ACCESS_KEY", "ann")
    monkeypatch.setenv("HOLDFAST_SECRET_KEY", SECRET)

    assert credentials_of() == CredentialsOptions(access_key="ann", secret_key=SECRET)
    with pytest.raises(ConfigError, match="option 'secretKey' or option 'secretFile'"):
        credentials_of(accessKey="bob")


@pytest.mark.parametrize(
    "options",
    [
        {"secretKey": SECRET},
        {"accessKey": "ann", "secretKey": SECRET, "secretFile": "/s"},
        {"accessKey": "ann", "secretKey": SECRET, "auth": "never"},
        {"accessKey": "ann", "secretKey": SECRET, "secretkeys": SECRET},
    ],
)
def test_an_error_names_the_options_and_not_the_secret(options: dict[str, str]):
    """Errors end up in logs and in Spark's pages."""
    for read, base in ((read_sink_options, SINK), (lambda both: read_source_options(both, is_stream=False), SOURCE)):
        with pytest.raises(ConfigError) as caught:
            read({**base, **options})
        assert SECRET not in str(caught.value)


def plans_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().toString())


def descriptions(spark: SparkSession) -> str:
    """Return what the page of SQL queries shows for every query so far."""
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    return "\n".join(executions.apply(number).physicalPlanDescription() for number in range(executions.size()))


def test_rows_pass_and_the_secret_is_in_no_plan(spark: SparkSession, cluster: SparkCluster, read: Read, tmp_path: Path):
    """Given as an option or in a file that tasks read; as a batch and as a stream."""
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_text(SECRET, encoding="utf-8")
    topic = cluster.new_topic()
    access = {"accessKey": "ann", "secretKey": SECRET}
    rows = spark.range(50).selectExpr("cast(id as string) as body")
    writer = rows.write.format("holdfast").options(namesrv=cluster.namesrv, topic=topic, **access)
    writer.mode("append").save()

    frame = read(topic, **access)
    assert numbers_of(frame) == list(range(50))
    assert numbers_of(read(topic, accessKey="ann", secretFile=str(file))) == list(range(50))
    stream = spark.readStream.format("holdfast").options(
        namesrv=cluster.namesrv, subscribe=topic, startingOffsets="earliest", **access
    )
    query = (
        stream.load()
        .select("body")
        .writeStream.format("holdfast")
        .options(namesrv=cluster.namesrv, topic=cluster.new_topic(), checkpointLocation=str(tmp_path / "c"), **access)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.sql(
        f"CREATE TEMPORARY VIEW of_ann USING holdfast OPTIONS (namesrv '{cluster.namesrv}', subscribe '{topic}', "
        f"accessKey 'ann', secretKey '{SECRET}')"
    )
    shown = plans_of(frame) + descriptions(spark) + str(query._jsq.explainInternal(True))
    settings = "\n".join(f"{key}={value}" for key, value in spark.sparkContext.getConf().getAll())
    checkpoint = b"".join(part.read_bytes() for part in (tmp_path / "c").rglob("*") if part.is_file())
    assert "redacted" in shown  # The only plan with options is the one of the view.
    assert SECRET not in shown + settings
    assert SECRET.encode() not in checkpoint


@pytest.mark.parametrize("sink", ["memory", "holdfast"])
def test_a_running_query_goes_through_a_rotation(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: str
):
    """The cluster has access control: the secret is in a file, and another one takes its place."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    file = str(tmp_path / "reader.secret")
    with Up(tmp_path / "data", "--brokers", "1", "--auth") as cluster:
        auth = cluster.announced["auth"]

        def run(*words: str) -> CommandResult:
            access = ("--access-key", auth["access_key"], "--secret-file", auth["secret_file"])
            result = run_in_process(*words, *access, namesrv=cluster.namesrv)
            assert result.status == 0, result.err
            return result

        for topic in ("orders", "copies"):
            run("topic", "create", topic, "--queues", "2")
        run("user", "create", "reader", "--save-to", file)
        run("acl", "grant", "reader", "Topic:orders", "Sub,Get")
        run("acl", "grant", "reader", "Topic:copies", "Pub")
        run("acl", "grant", "reader", "Group:holdfast-spark", "Sub")
        access = {"namesrv": cluster.namesrv, "accessKey": "reader", "secretFile": file}
        stream = spark.readStream.format("holdfast").options(subscribe="orders", startingOffsets="earliest", **access)
        writer = stream.load().select("body").writeStream.format(sink).queryName("rotated")
        if sink == "holdfast":
            writer = writer.options(topic="copies", checkpointLocation=str(tmp_path / "c"), **access)
        with blocking.Producer(cluster.namesrv, **auth) as producer:
            query = writer.start()
            try:
                for step in (None, "--keep-old-secret", "--drop-old-secret"):
                    if step is not None:
                        saved = ("--save-to", file) if step == "--keep-old-secret" else ()
                        run("user", "update", "reader", *saved, step)
                    producer.send_many([Message("orders", b"%d" % number) for number in range(10)])
                    query.processAllAvailable()
                assert query.exception() is None
            finally:
                query.stop()
        if sink == "memory":
            assert spark.table("rotated").count() == 30
        else:
            options = {"namesrv": cluster.namesrv, "subscribe": "copies", "accessKey": auth["access_key"]}
            copies = spark.read.format("holdfast").options(secretFile=auth["secret_file"], **options).load()
            assert copies.count() == 30
