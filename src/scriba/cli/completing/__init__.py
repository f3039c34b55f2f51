"""Scripts by which shells complete `scriba`: a table of what can follow, in each shell's terms.

The table is made from the words of the commands themselves, so a script is never behind them. It is
written out whole: completing a command or an option starts no Python. Names of topics, groups and
profiles are asked for when they are wanted; a cluster that does not answer in a second has none.
"""
