"""Processes of several ranks, and cases that run on them."""
