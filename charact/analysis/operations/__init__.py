"""Times and speeds of basic operations."""
