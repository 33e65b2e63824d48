"""Figures for papers about constructed models."""
