"""Scriba: a distributed commit log in Python that any Kafka client takes for Kafka."""

__version__ = "0.1.0"
