"""Topics in Spark SQL: views and tables."""

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.spark.conftest import SparkCluster

from holdfast.spark.spark_session import _LOCAL_CONFIG, session


@pytest.fixture
def topic(cluster: SparkCluster) -> str:
    found = cluster.new_topic(queues=2)
    cluster.send(found, range(10))
    return found


def test_a_topic_is_a_temporary_view(spark: SparkSession, cluster: SparkCluster, topic: str):
    """Made anew it has what is in the topic by then."""
    options = f"OPTIONS (namesrv '{cluster.namesrv}', subscribe '{topic}')"
    view = f"CREATE OR REPLACE TEMPORARY VIEW sql_view USING holdfast {options}"
    query = f"SELECT count(*) AS rows FROM sql_view WHERE topic = '{topic}'"

    spark.sql(view)
    assert spark.sql(query).collect()[0].rows == 10
    cluster.send(topic, range(10, 30))
    spark.sql(view)
    assert spark.sql(query).collect()[0].rows == 30


def test_a_table_is_refused_when_it_is_made(spark: SparkSession, cluster: SparkCluster, topic: str):
    """Spark would read it without its options."""
    options = f"OPTIONS (namesrv '{cluster.namesrv}', subscribe '{topic}')"

    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE sql_table USING holdfast {options}")
    assert not spark.catalog.tableExists("sql_table")


def test_a_table_with_columns_says_what_it_lacks(spark: SparkSession, cluster: SparkCluster, topic: str):
    """Spark does not ask the source when such a table is made. A query can bring the options itself."""
    spark.sql("DROP TABLE IF EXISTS sql_columns")
    spark.sql("CREATE TABLE sql_columns (offset bigint) USING holdfast")

    with pytest.raises(PySparkException, match="make a temporary view"):
        spark.sql("SELECT * FROM sql_columns").collect()
    options = f"WITH (namesrv = '{cluster.namesrv}', subscribe = '{topic}')"
    assert len(spark.sql(f"SELECT * FROM sql_columns {options}").collect()) == 10
    spark.sql("DROP TABLE sql_columns")


def test_a_session_states_what_it_changes():
    """Its users wonder where the web UI is."""
    changed = [name for name in _LOCAL_CONFIG if name not in (session.__doc__ or "")]

    assert changed == []
