"""Findings about settings of threads, optimizers, types and layers."""
