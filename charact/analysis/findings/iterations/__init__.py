"""Findings about slow iterations, iterations that get longer, and evaluation."""
