"""Facts of a whole watched program: settings, events besides spans, and every iteration."""
