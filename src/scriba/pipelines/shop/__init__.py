"""A shop in real time: events in, live figures out, everything kept in a lake."""
