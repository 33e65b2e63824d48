"""Views of suites and constructed models."""
