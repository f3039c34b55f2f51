"""Apache Kafka's jars, brokers of both kinds, and requests made byte by byte."""
