"""One file a command: its docstring is its help, heavy imports happen inside."""
