"""Timing of basic operations, and of a device's ceilings."""
