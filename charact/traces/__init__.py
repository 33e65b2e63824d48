"""Conversion of `torch.profiler` traces into the tables of the record. Imports no torch."""
