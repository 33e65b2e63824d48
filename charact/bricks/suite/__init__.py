"""Suites on disk: index, bricks and compositions. These modules do not import torch."""
