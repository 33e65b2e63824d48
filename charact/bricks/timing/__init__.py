"""Timing of a suite's bricks."""
