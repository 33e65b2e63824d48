"""Time per phase, operator type and case."""
