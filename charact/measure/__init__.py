"""Measurement: the passes over cases, scripts and operations."""

import os

# Read at torch's import and first profile: otherwise each pass prints lines to the terminal.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
