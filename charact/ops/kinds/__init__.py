"""Kinds of operations: one file each, holding an object `KIND` that keeps to `charact.ops.Kind`."""
