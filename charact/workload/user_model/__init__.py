"""Workload for a user's own model: its inputs from a spec, its loss, its optimizer."""
