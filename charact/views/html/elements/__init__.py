"""Figures and blocks that sections are made of."""
