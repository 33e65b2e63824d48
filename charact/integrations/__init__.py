"""Hooks for training frameworks: each a few lines around `charact.Profiler`, in a file named as its framework."""
