"""What a figure was measured on: the commit, the machine and its load, as one line above the figures."""

import os
from datetime import UTC, datetime
from pathlib import Path

import torch

from charact.machine.facts import cpu_model, git_state


def conditions() -> str:
    """Return the commit, processor, load, PyTorch's version, number of threads and day."""
    state = git_state(Path(__file__).parent)
    commit = "an unknown commit" if state is None else f"commit {state['commit'][:8]}"
    changed = {True: " with changes", False: "", None: ", perhaps with changes"}[state["dirty"] if state else False]
    load = f"load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "load not available"
    return (f"{commit}{changed}; {cpu_model()}, {os.cpu_count()} cores, {load}; torch {torch.__version__}, "
            f"{torch.get_num_threads()} threads; {datetime.now(UTC):%Y-%m-%d}")
