"""Analyses of several ranks: matched iterations, waiting, stragglers, collectives."""
