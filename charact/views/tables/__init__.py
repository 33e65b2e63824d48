"""Tables and texts that all views share."""
