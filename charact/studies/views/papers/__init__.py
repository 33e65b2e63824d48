"""Figures for papers about published values."""
