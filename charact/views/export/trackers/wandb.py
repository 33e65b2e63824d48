"""Export to Weights & Biases: one of its runs for each run of charact, in the project `charact`.

The client's own variables choose the place: `WANDB_PROJECT`, `WANDB_ENTITY`, `WANDB_MODE` and `WANDB_DIR`.
"""

import os
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from charact.record.reader import Run
from charact.views.export.tracker import Tracker, client, client_error, metrics, run_parameters, write_artifacts

_STEP = "step"
"""Horizontal axis of all series: W&B's own step may only rise, and each series here begins at its first step."""


def _export(run: Run, _target: Path | None, _force: bool) -> str:
    wandb: Any = client("wandb", "wandb")
    try:
        return _logged(run, wandb)
    except wandb.Error as error:
        raise client_error("W&B", error, "log in, or set WANDB_MODE=offline") from error


def _logged(run: Run, wandb: Any) -> str:
    # The export is not the measured program: its output, code and load do not belong to the run.
    settings = wandb.Settings(console="off", disable_code=True, disable_git=True, silent=True, x_disable_meta=True,
                              x_disable_stats=True)
    with wandb.init(project=os.environ.get("WANDB_PROJECT") or "charact", name=run.run_id, job_type="charact",
                    config=run_parameters(run), settings=settings) as logged:
        logged.define_metric(_STEP, hidden=True)
        logged.define_metric("*", step_metric=_STEP)
        by_step: defaultdict[int, dict[str, float]] = defaultdict(dict)
        for tag, points in metrics(run).items():
            for step, value in points.items():
                by_step[step][tag] = value
        for step, values in sorted(by_step.items()):
            logged.log({_STEP: step} | values)
        with tempfile.TemporaryDirectory() as directory:
            artifact = wandb.Artifact(f"charact-{logged.id}", type="charact")
            for path in write_artifacts(run, Path(directory)):
                artifact.add_file(str(path), name=path.relative_to(directory).as_posix())
            logged.log_artifact(artifact)
            if not logged.offline:
                artifact.wait()
    return f"Wrote W&B run {logged.id} to {Path(logged.dir).parent if logged.offline else logged.url}"


TRACKER = Tracker("wandb", _export)
