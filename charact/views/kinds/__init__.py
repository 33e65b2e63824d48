"""Kinds of cases, one a file, found by scanning."""
