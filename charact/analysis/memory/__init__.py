"""Memory composition, growth, limits and timeline."""
