"""A query that acts as a user: tasks get the secret, and no plan shows it."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.conftest import Read, SparkCluster, numbers_of

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
