"""Whole trainings and inferences, stage by stage."""
