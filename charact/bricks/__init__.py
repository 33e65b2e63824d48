"""Bricks: models captured as operators, cut into short sequences of layers that run and are timed without the model."""
