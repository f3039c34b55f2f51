"""An inventory whose books balance: stock as events, decided by one writer, served by anyone.

model     events, commands and what is refused: plain values and their JSON
decide    state and command -> events or a refusal; pure
topics    the topics, and what is demanded of them
store     what was read, on the local disk: positions, stock, history, commands
follower  keeps the store up to date with the topics, and knows whether it is
writer    the one that decides: fenced, caught up, one transaction for a command
lead      who that is
service   the parts together; `web` and `openapi` are its face
view, reconcile   the same books on Spark
"""
