"""Lists of problems: one file each, with an object `SUITE` that implements `charact.ops.Suite`."""
