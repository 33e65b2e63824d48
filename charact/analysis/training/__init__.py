"""Stages of trainings and inferences."""
