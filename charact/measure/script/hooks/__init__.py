"""Patches of PyTorch that record a program's calls as spans."""
