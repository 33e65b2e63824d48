"""Passes of `charact profile`: timing, operators, memory, FLOP, counters."""
