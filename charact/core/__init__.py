"""Utilities without dependencies on other layers: errors, files, limits, texts, units, statistics."""
