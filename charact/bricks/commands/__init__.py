"""`charact bricks`."""
