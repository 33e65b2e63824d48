"""Names of charact's annotations in the profiler's trace. Imports no torch."""

PHASE_PREFIX = "charact.phase:"
LAYER_PREFIX = "charact.layer:"
RELEASE_PREFIX = "charact.release:"
KERNEL_PREFIX = "charact.kernel:"
"""Followed by the layer of the next kernel of compiled code."""
