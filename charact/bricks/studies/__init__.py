"""Studies about bricks."""
