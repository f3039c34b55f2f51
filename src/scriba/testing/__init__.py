"""What tests of Scriba, and of programs that use it, can stand on.

`history` checks what clients did and saw: records, transactions, groups, compacted topics. `cast`
has clients that tell it, and `verdict` how their play ends; both run anywhere.

`sim_world` is a whole simulated world from one seed: virtual time, disks that lose what was not
synced, a network that delays, cuts and resets. `peer` is a bare protocol client. `single_node` and
`coordinated` play one node under a seed's faults, the first with plain records, the other with
groups, transactions and compaction; `python -m scriba.testing.sim_run SEED` replays a seed.
"""
