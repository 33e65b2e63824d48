"""Analyses of a run: each function returns a DataFrame. Imports no torch and measures nothing."""
