"""Capturing a model as a graph of ATen operators."""
