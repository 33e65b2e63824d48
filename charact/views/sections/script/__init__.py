"""Sections of scripts and of imported traces."""
