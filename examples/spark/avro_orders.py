"""Values in Avro: written with `to_avro`, read with `from_avro`.

    python avro_orders.py localhost:9092

Spark keeps both functions in a jar of its own, which it brings from Maven when it starts; its
version need not be that of Spark to the last digit. Values that a schema registry has framed carry
five bytes before the Avro: read them with `from_avro(F.expr("substring(value, 6)"), ...)`.
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro

import scriba.spark
from scriba.client import NewTopic, SyncAdmin

JAR = "org.apache.spark:spark-avro_2.13:4.1.1"
SCHEMA = """{"type": "record", "name": "Order", "fields": [
    {"name": "customer", "type": "string"}, {"name": "cents", "type": "long"}]}"""


def put(orders: DataFrame, broker: dict[str, str], topic: str) -> None:
    """Appends orders to a topic, by customer."""
    value = to_avro(F.struct("customer", "cents"), SCHEMA)
    records = orders.select(F.col("customer").alias("key"), value.alias("value"))
    records.write.format("scriba").options(**broker, topic=topic).mode("append").save()


def orders(records: DataFrame) -> DataFrame:
    """One row for each record, with nulls where the value is not Avro: one bad record must not end
    a query."""
    order = from_avro("value", SCHEMA, {"mode": "PERMISSIVE"})
    return records.select("offset", order.alias("order")).select("offset", "order.*")


def main(bootstrap: str) -> None:
    broker, topic = {"kafka.bootstrap.servers": bootstrap}, "avro-orders"
    with SyncAdmin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
    spark: SparkSession = scriba.spark.session("avro", config={"spark.jars.packages": JAR})
    rows = spark.createDataFrame([("ada", 1250), ("bob", 300)], "customer string, cents long")
    put(rows, broker, topic)
    orders(spark.read.format("scriba").options(**broker, subscribe=topic).load()).show()
    scriba.spark.end(spark)


if __name__ == "__main__":
    main(*sys.argv[1:])
