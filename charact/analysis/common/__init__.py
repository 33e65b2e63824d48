"""Helpers shared by the analyses."""
