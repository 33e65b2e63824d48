"""Models made of bricks: what they are made of, their latency and memory from the bricks' times, and how right that is.

Nothing here imports torch: of `charact.bricks` only compositions and what bricks are.
"""
