"""What tests of Scriba, and of programs that use it, can stand on.

`history` checks what clients did and saw: records, transactions, groups, compacted topics. `sim` is
the simulator of whole nodes.
"""
