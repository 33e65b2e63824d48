"""`charact study`."""
