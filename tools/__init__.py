"""What building and testing need, and no user: checks, generated pages, Apache Kafka."""
