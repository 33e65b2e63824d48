"""Tables and texts that every renderer shares."""
