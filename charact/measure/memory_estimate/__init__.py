"""Memory estimate of a case before it runs: an iteration on fake tensors, replayed through a model of the allocator.

    program -> allocation trace -> replay -> estimate
               calibration, allocator

The trace of allocations and frees of tensors is exact. The allocator model adds rounding and reserved memory, and the
calibration adds memory that operators allocate internally.
"""
