"""Bytes to messages and back, without any I/O. Where to find what:

`schema` the language of the declarations, `codec` its compiler, `varint`, `uuids`;
`apis` the table of APIs, `frame` headers; and the messages, by family:
`produce`; `fetch` (with list offsets, epochs); `metadata` (with API versions, cluster,
coordinators); `groups`; `txn`; `admin` (topics, partitions, log directories); `configs` (with
quotas, features, telemetry); `security`; `quorum` (Raft); `brokers` (broker to controller);
`share`; `streams`; and what is kept on disk: `stored`, `stored_groups`, `stored_share`.
"""
