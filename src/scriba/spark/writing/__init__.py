"""Writes rows into topics: exactly once from `foreachBatch`, at least once as a data source."""
