"""Figures and blocks of sections."""
