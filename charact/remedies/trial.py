"""Entry point of a trial's process: `python -m charact.remedies.trial run … train.py`, as `charact run … train.py`.

The variable CHARACT_TRIAL names a JSON file with the remedies to apply, the seed, and the file for the outcome. They
are applied when the program imports PyTorch, before charact watches it. Ranks of `--nproc` inherit the variable.
"""

import atexit
import contextlib
import faulthandler
import os
import random
import runpy
import sys
from pathlib import Path
from typing import Any

import msgspec

from charact.core.files import write_text
from charact.execution.parent import die_with_parent

TRIAL = "CHARACT_TRIAL"


class Plan(msgspec.Struct):
    """What a trial applies.

    `settings`: names of remedies and the arguments of `Remedy.apply`. `outcome`: name of the file for an `Outcome`,
    next to the plan's. `parent`: ID of the process that starts the trial, and with which the trial ends.
    """

    settings: list[tuple[str, dict[str, Any]]]
    seed: int
    outcome: str
    parent: int


class Outcome(msgspec.Struct):
    """What a trial found out: its first losses, null if not a number, or why a remedy could not be applied."""

    losses: list[float | None] = []
    unavailable: str | None = None


def main() -> None:
    """Run charact with the remedies of the plan."""
    from charact.measure.script.hooks.import_hook import when_imported
    from charact.measure.script.ranks.launcher import AGENT

    plan = msgspec.json.decode(Path(os.environ[TRIAL]).read_bytes(), type=Plan)
    if AGENT not in os.environ:  # a rank ends with its agent
        die_with_parent(plan.parent)
    faulthandler.enable()
    random.seed(plan.seed)
    when_imported("torch", lambda: _apply(plan))
    sys.argv[0] = "charact"
    runpy.run_module("charact", run_name="__main__")  # as python -m charact does


def _apply(plan: Plan) -> None:
    """Seed PyTorch and NumPy, apply the remedies and record losses; PyTorch has just been imported."""
    import numpy as np
    import torch

    from charact.measure.script.ranks.launcher import AGENT
    from charact.remedies.losses import LossRecorder
    from charact.remedies.patching import Unavailable
    from charact.remedies.remedy import all_remedies

    torch.manual_seed(plan.seed)
    np.random.seed(plan.seed)
    process, rank = os.getpid(), int(os.environ.get("RANK", "0"))
    place = Path(os.environ[TRIAL]).with_name(plan.outcome)
    outcome = Outcome()

    def write() -> None:
        # The process that starts the ranks of --nproc ends last, and has no losses.
        if os.getpid() == process and rank == 0 and os.environ.get(AGENT) != str(process):
            with contextlib.suppress(Exception):
                outcome.losses = list(losses.values())
            write_text(place, msgspec.json.encode(outcome).decode(), force=True)

    losses = LossRecorder()
    atexit.register(write)

    print_error = sys.excepthook

    def end_if_unavailable(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if isinstance(error, Unavailable):
            outcome.unavailable = str(error)
        else:
            print_error(kind, error, trace)

    sys.excepthook = end_if_unavailable
    for name, values in plan.settings:
        all_remedies()[name].apply(**values)


if __name__ == "__main__":
    main()
