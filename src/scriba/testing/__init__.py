"""What tests of Scriba, and of programs that use it, can stand on.

`sim_world` is a whole simulated world from one seed: virtual time, disks that lose what was not
synced, a network that delays, cuts and resets. `peer` is a bare protocol client. `single_node`
plays one node under a seed's faults; `python -m scriba.testing.sim_run SEED` replays a seed.
"""
