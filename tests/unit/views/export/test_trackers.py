"""Exports to experiment trackers: the same scalars as in TensorBoard, and one line where a client is absent."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support import records

from charact.commands import export as export_command
from charact.core.errors import UserError
from charact.record.reader import load_run
from charact.views.export.tracker import all_trackers, export_to, run_parameters, tracked_run
from charact.views.section import Scalar
from charact.views.tensorboard.scalars import scalars

CLIENTS = {"mlflow": "mlflow", "prometheus": "prometheus_client", "wandb": "wandb"}


def needs(name: str) -> pytest.MarkDecorator:
    found = importlib.util.find_spec(CLIENTS[name]) is not None
    return pytest.mark.skipif(not found, reason=f"needs {CLIENTS[name]}: pip install 'charact[{name}]'")


@pytest.fixture
def training(tmp_path: Path) -> Path:
    return records.write_training(tmp_path / "runs")


def points(record: Path) -> list[Scalar]:
    found = list(scalars(tracked_run(load_run(record))))
    assert len(found) > 20
    return found


def test_the_trackers_are_those_in_the_folder() -> None:
    assert list(all_trackers()) == sorted(CLIENTS)


@pytest.mark.parametrize("name", CLIENTS)
def test_an_absent_client_is_one_line_with_the_remedy(
    record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    place = tmp_path / "empty"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setitem(sys.modules, CLIENTS[name], None)
    with pytest.raises(UserError, match=rf"^{CLIENTS[name]} is not installed: pip install 'charact\[{name}\]'$"):
        export_command.command(record, to=Path(name))
    assert not list(place.iterdir())


def test_a_library_that_a_client_lacks_is_not_hidden(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'yaml'", name="yaml")

    tracker = all_trackers()["wandb"]
    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="yaml"):
        tracker.export(load_run(record), None, False)


@pytest.mark.parametrize(("form", "to", "message"), [
    (None, None, "name a format with --format: one of csv, json, parquet, perfetto, mlflow"),
    (None, "somewhere", "name a format with --format"), ("xml", None, "unknown format 'xml': choose from csv, json,"),
    ("mlflow", "there", "--to is for files: leave it out, since mlflow"),
])
def test_bad_formats_are_one_line(record: Path, form: str | None, to: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        export_command.command(record, form, None if to is None else Path(to))


def test_a_format_may_be_named_by_to(record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    export_command.command(record, to=Path("json"))
    assert (tmp_path / f"{record.name}-json" / "run.json").exists()


def test_parameters_that_all_cases_share_are_named_once(training: Path) -> None:
    found = run_parameters(load_run(training))
    assert found["workload"] == "resnet18"
    assert found["options/seed"] == 0
    assert found["resnet18-32-b20-train-fp32-cpu/batch_size"] == 20
    assert "batch_size" not in found
    assert "resnet18-32-b20-train-fp32-cpu/workload" not in found
    assert "reason" not in found


def test_secrets_are_not_exported(training: Path) -> None:
    """Earlier versions recorded them."""
    run = load_run(training)
    run.manifest["options"]["api_key"] = "hunter2-hunter2"
    assert run_parameters(run)["options/api_key"] == "hunter2-hunter2"
    assert "hunter2" not in str(run_parameters(tracked_run(run)))


@needs("mlflow")
def test_mlflow_has_every_scalar_the_parameters_and_the_report(
    training: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    from mlflow import MlflowClient

    export_command.command(training, to=Path("mlflow"))
    tracking = MlflowClient()
    [logged] = tracking.search_runs([tracking.get_experiment_by_name("charact").experiment_id])
    assert f"Wrote MLflow run {logged.info.run_id} of experiment charact" in capsys.readouterr().out
    assert (logged.info.run_name, logged.info.status) == (training.name, "FINISHED")
    found = [Scalar(tag, one.step, one.value) for tag in logged.data.metrics
             for one in tracking.get_metric_history(logged.info.run_id, tag)]
    assert sorted(found) == sorted(points(training))
    expected = {name: str(value) for name, value in run_parameters(load_run(training)).items()}
    assert logged.data.params == expected
    assert {one.path for one in tracking.list_artifacts(logged.info.run_id)} == {"report.html", "tables"}


@needs("mlflow")
def test_mlflow_errors_are_one_line(record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "ftp://nowhere")
    with pytest.raises(UserError, match=r"^MLflow reports: [^\n]*: set MLFLOW_TRACKING_URI to your server's address$"):
        export_to(all_trackers()["mlflow"], load_run(record), None)


@needs("wandb")
def test_wandb_has_every_scalar_the_parameters_and_the_report(
    training: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "offline")
    export_command.command(training, to=Path("wandb"))
    [log] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert f"to {log.parent}" in capsys.readouterr().out
    written = wandb_records(log)
    found: list[Scalar] = []
    for record in (one.history for one in written if one.WhichOneof("record_type") == "history"):
        values = {".".join(item.nested_key) or item.key: float(item.value_json) for item in record.item}
        found += [Scalar(tag, int(values["step"]), value) for tag, value in values.items()
                  if tag != "step" and not tag.startswith("_")]
    assert sorted(found) == sorted(points(training))
    [run] = [one.run for one in written if one.WhichOneof("record_type") == "run"]
    assert (run.display_name, run.project) == (training.name, "charact")
    assert {item.key for item in run.config.update} >= set(run_parameters(load_run(training)))
    [artifact] = [one.request.log_artifact.artifact if one.WhichOneof("record_type") == "request" else one.artifact
                  for one in written if b"report.html" in one.SerializeToString()]
    paths = {entry.path for entry in artifact.manifest.contents}
    assert paths > {"report.html", "tables/run.json", "tables/stages.parquet"}


def wandb_records(path: Path) -> list[Any]:
    """The records of an offline run: LevelDB's log format, blocks of 32 KiB of chunks with headers of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, position, parts, found = path.read_bytes(), 7, b"", []
    while position + 7 <= len(content):
        if 32768 - position % 32768 < 7:  # the rest of a block is padding
            position += 32768 - position % 32768
            continue
        size, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        parts += content[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # a whole record, or its last part
            found.append(Record.FromString(parts))
            parts = b""
    return found


@needs("prometheus")
def test_prometheus_has_a_gauge_of_every_series(training: Path, tmp_path: Path) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    path = tmp_path / "charact.prom"
    export_to(all_trackers()["prometheus"], load_run(training), path)
    families = {one.name: one.samples for one in text_string_to_metric_families(path.read_text())}
    [case] = {sample.labels["case"] for sample in families["charact_case_info"] if sample.labels["batch_size"] == "20"}
    values = [point.value for point in points(training) if point.tag == f"{case}/accuracy/validation"]
    found = {sample.labels["statistic"]: sample.value for sample in families["charact_accuracy_validation"]
             if sample.labels["case"] == case}
    assert len(values) > 2
    assert (found["last"], found["min"], found["max"]) == (values[-1], min(values), max(values))
    tags = {point.tag for point in points(training)}
    assert len(tags) * 4 == sum(len(samples) for samples in families.values()) - len(families["charact_case_info"])


@needs("prometheus")
def test_prometheus_has_series_over_input_sizes(record: Path, tmp_path: Path) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    path = tmp_path / "charact.prom"
    export_to(all_trackers()["prometheus"], load_run(record), path)
    families = {one.name: one.samples for one in text_string_to_metric_families(path.read_text())}
    expected = {("series", str(point.step)): point.value for point in points(record)
                if point.tag.startswith("samples_per_s/") and "train" in point.tag}
    found = {("series", one.labels["input_size"]): one.value for one in families["charact_samples_per_s_by_size"]
             if "train" in one.labels["series"]}
    assert len(found) == 2
    assert found == expected


@needs("prometheus")
def test_prometheus_files_end_as_the_collector_wants_and_are_not_replaced(record: Path, tmp_path: Path) -> None:
    tracker, run = all_trackers()["prometheus"], load_run(record)
    with pytest.raises(UserError, match=r"does not end in \.prom"):
        export_to(tracker, run, tmp_path / "charact.txt")
    path = tmp_path / "charact.prom"
    path.write_text("mine")
    with pytest.raises(UserError, match="exists: --force overwrites it"):
        export_to(tracker, run, path)
    assert path.read_text() == "mine"
    export_to(tracker, run, path, force=True)
    assert path.read_text().startswith("# HELP charact_case_info")
