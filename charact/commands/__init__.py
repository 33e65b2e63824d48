"""Commands, one per file: the docstring is the help text, and heavy imports are inside the function."""
