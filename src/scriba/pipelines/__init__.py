"""Systems that run on the log: each reads topics, works on Spark, and writes topics."""
