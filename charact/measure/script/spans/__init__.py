"""Spans of a script: recorded, grouped into iterations and written as rows."""
