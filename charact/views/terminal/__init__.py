"""Terminal views: summaries of runs, and progress."""
