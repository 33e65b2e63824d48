"""Times and rates of basic operations."""
