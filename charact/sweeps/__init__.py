"""Sweeps: many cases, each one command of charact in a process of its own, here or as jobs of Slurm."""
