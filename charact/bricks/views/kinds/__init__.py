"""Kinds of cases: suites of bricks and constructed models."""
