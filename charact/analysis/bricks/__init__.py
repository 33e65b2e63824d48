"""Analysis of suites and constructed models: reuse of bricks, latency and memory from bricks' times, and their errors.

Nothing here imports torch; from `charact.bricks` only the modules of compositions and bricks.
"""
