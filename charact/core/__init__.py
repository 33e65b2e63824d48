"""What every layer uses and what imports no other layer: errors, files, limits, texts, units, statistics."""
