"""Memory of a case before it runs: one iteration on fake tensors, and what a device's allocator makes of it.

    program -> tape -> replay -> prediction
               calibration, allocator

The tape holds when each tensor is made and given back; it is exact. The allocator tells what the device adds, and the
calibration what operators allocate inside themselves, which no tensor shows.
"""
