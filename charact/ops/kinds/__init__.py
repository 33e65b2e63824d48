"""Kinds of operations: one file each, with an object `KIND` that implements `charact.ops.Kind`."""
