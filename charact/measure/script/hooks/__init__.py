"""Patches of PyTorch that report what a script calls."""
