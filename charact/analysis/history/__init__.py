"""A case over many runs: its metrics by run, and the points at which they change."""
