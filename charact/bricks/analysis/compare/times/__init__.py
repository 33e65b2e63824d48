"""Times of suites and of constructed models."""
