"""Chapters of studies about bricks."""
