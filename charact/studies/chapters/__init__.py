"""One file a study, found by scanning: its `STUDY`."""
