"""Findings about what the code of the program and its model does."""
