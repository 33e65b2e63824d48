"""Profiling of unmodified PyTorch programs: patches of PyTorch record spans, which become iterations and phases.

`hooks` patches PyTorch, and `spans` records spans and groups them into iterations.
"""
