"""What analyses share."""
