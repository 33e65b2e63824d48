"""Charts of each part of a report, as data."""
