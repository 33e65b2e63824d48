"""Sections about several ranks of a program."""
