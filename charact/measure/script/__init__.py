"""Phases of a program that knows nothing of charact, found by watching the parts of PyTorch that it calls.

`patches` tells what is watched, `spans` when it ran, and `segments` what iterations and phases that makes.
"""
