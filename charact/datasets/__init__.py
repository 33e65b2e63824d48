"""Data sets, one module each, with a list `DATASETS` that the registry finds."""
