"""A trace of `torch.profiler` from anywhere becomes the tables of the record. No torch in here."""
