"""Sections of the report, one a file, found by scanning."""
