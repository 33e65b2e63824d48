"""Exports: CSV, JSON, Markdown, JUnit."""
