"""Remedies that are tried on a program: applied from outside, measured by turns, and checked against its losses.

*Source*: people ask which setting of a loader is fastest (pytorch/pytorch#23048), and whether a remedy helps here.
"""
