"""The command `charact try`."""
