"""Lists of problems: one file each, holding an object `SUITE` that keeps to `charact.ops.Suite`."""
