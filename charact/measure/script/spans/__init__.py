"""Spans of a profiled program: recorded, grouped into iterations, converted to tables."""
