"""What is measured: one pass per instrument."""
