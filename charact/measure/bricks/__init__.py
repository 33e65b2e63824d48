"""Timing the bricks of a suite."""
