"""Windows of time of a long program: what is recorded of its iterations after the event log is full."""
