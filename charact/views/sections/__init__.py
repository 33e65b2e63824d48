"""Sections of the report, one per file, found by scanning the folder."""
