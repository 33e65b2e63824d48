"""Timing and memory measurement of a suite's bricks."""
