"""Measured memory over batch sizes and input sizes, and the largest that fits."""
