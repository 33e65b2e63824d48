"""Views of the studies."""
