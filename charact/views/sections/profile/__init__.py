"""Sections of profiled cases."""
