"""Findings about the code of the program and of its model."""
