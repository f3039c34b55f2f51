"""A consumer's membership in its group: one machine for each of the two protocols."""
