"""Summaries in the terminal, and progress."""
