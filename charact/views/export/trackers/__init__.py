"""Exports to experiment trackers, one a file, found by scanning."""
