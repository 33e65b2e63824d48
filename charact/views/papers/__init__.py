"""Figures for papers, one per file, found by scanning the folder; drawn by seaborn."""
