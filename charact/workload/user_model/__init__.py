"""A workload around any model that can be imported: its inputs from a spec, its loss, its optimizer."""
