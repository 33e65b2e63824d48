"""Comparison of suites and of constructed models."""
