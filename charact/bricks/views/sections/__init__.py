"""Sections of bricks and of models constructed from them."""
