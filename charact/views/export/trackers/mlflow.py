"""Export to MLflow: one MLflow run for each run of charact, in the experiment `charact`.

The client's own variables choose the place: `MLFLOW_TRACKING_URI` and `MLFLOW_EXPERIMENT_NAME`.
"""

import os
import re
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

from charact.record.reader import Run
from charact.views.export.tracker import Tracker, client, client_error, metrics, run_parameters, write_artifacts

_LARGEST_BATCH, _MOST_PARAMETERS = 1000, 100
"""Largest numbers of metrics and of parameters in one request.

*Source*: mlflow/utils/validation.py, MAX_METRICS_PER_BATCH and MAX_PARAMS_TAGS_PER_BATCH.
"""
_FORBIDDEN = re.compile(r"[^/\w.\- ]")
"""Characters that MLflow's names of metrics and parameters cannot have on every system."""


def _export(run: Run, _target: Path | None, _force: bool) -> str:
    mlflow: Any = client("mlflow", "mlflow")
    try:
        return _logged(run, mlflow)
    except mlflow.exceptions.MlflowException as error:
        raise client_error("MLflow", error, "set MLFLOW_TRACKING_URI to your server's address") from error


def _logged(run: Run, mlflow: Any) -> str:
    tracking, entities = mlflow.MlflowClient(), mlflow.entities
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "charact"
    known = tracking.get_experiment_by_name(name)
    experiment = known.experiment_id if known else tracking.create_experiment(name)
    started = run.manifest.get("started")
    start_ms = int(datetime.fromisoformat(started).timestamp() * 1000) if started else None
    run_id = tracking.create_run(experiment, start_ms, run_name=run.run_id).info.run_id
    try:
        time_ms = start_ms or 0
        points = [entities.Metric(_name(tag), value, time_ms, step)
                  for tag, values in metrics(run).items() for step, value in values.items()]
        for first in range(0, len(points), _LARGEST_BATCH):
            tracking.log_batch(run_id, metrics=points[first : first + _LARGEST_BATCH])
        parameters = [entities.Param(_name(key), str(value)) for key, value in run_parameters(run).items()]
        for first in range(0, len(parameters), _MOST_PARAMETERS):
            tracking.log_batch(run_id, params=parameters[first : first + _MOST_PARAMETERS])
        with tempfile.TemporaryDirectory() as directory:
            write_artifacts(run, Path(directory))
            tracking.log_artifacts(run_id, directory)
    except BaseException:
        tracking.set_terminated(run_id, "FAILED")
        raise
    tracking.set_terminated(run_id, "FINISHED")
    return f"Wrote MLflow run {run_id} of experiment {name} to {mlflow.get_tracking_uri()}"


def _name(text: str) -> str:
    return _FORBIDDEN.sub("_", text)


TRACKER = Tracker("mlflow", _export)
