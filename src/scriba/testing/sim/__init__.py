"""The simulator of whole nodes, for Scriba's own tests: one seed, one run, the same every time.

`world` is a whole simulated world: virtual time, disks that lose what was not synced, a network
that delays, cuts and resets. `peer` is a bare protocol client. `single_node` and `coordinated` play
one node under a seed's faults, the first with plain records, the other with groups, transactions
and compaction. `cast` has clients that use groups and transactions, and `verdict` how their play
ends; both run anywhere. `differential` plays one seed with fast paths and without, and compares all
that clients got and all files; its clients are the `repeaters`.
`cluster` plays several nodes, `quorum` controllers alone; a `witness` looks into all of them
meanwhile, and misfortunes of nodes, network and clocks (`mishaps`) overlap. `directed` plays
faults that come at the moment at which they do most harm, and `electing` those of a quorum.
`python -m scriba.testing.sim.run SEED` replays a seed.
"""
