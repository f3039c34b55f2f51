"""Measurements; `make bench` holds Scriba beside Apache Kafka."""
