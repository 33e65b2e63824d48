"""Analysis of suites and constructed models: reuse of bricks, latencies from bricks' times, and their errors.

Nothing here imports torch. From `charact.bricks` only modules that read suites and compositions are imported.
"""
