"""Timing of a suite's bricks and of whole models."""
