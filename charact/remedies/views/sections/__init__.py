"""Sections of the report about remedies."""
