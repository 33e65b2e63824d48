"""What is measured: one pass per instrument."""

import os

# Read when torch is first imported and first profiles: else each pass writes lines of its own to the terminal.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
