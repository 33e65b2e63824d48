"""Timing of basic operations and of the device's ceilings."""
