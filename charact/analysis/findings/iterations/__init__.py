"""Findings about iterations that are slow, get slower, or are many."""
