"""Remedies, one file each, found by scanning: a file holds its remedy as `REMEDY`."""
