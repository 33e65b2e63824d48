"""Exports: CSV, JSON, Parquet, Markdown and JUnit."""
