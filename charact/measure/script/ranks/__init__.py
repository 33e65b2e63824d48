"""Ranks of a distributed program: the collectives that a rank takes part in."""
