"""Kinds of cases, one per file, found by scanning the folder."""
