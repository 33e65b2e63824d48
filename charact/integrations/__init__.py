"""Integrations of `charact.Profiler` into training frameworks, one module each."""
