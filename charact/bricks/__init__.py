"""Bricks: short operator sequences cut from captured models, which run and are timed without the model."""
