"""Data sets, one file each, found by scanning: each file holds a list `DATASETS`."""
