"""Names of charact's annotations in the profiler's trace. Imports no torch."""

PHASE_PREFIX = "charact.phase:"
LAYER_PREFIX = "charact.layer:"
RELEASE_PREFIX = "charact.release:"
