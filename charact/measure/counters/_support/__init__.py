"""Shared code of the counter sources."""
