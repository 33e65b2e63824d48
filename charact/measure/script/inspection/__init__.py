"""Inspection pass of a profiled program: gradients, optimizer state, inputs and module calls of an iteration."""
