import json
from pathlib import Path

import pandas as pd
import pytest
from support import records

from charact.analysis.compare import inference_comparison, run_comparison, training_comparison
from charact.store import Run, load_run
from charact.views.tensorboard.comparison import comparison

TRAIN = "resnet50-224-b8-train-fp32-cpu"


def slowed(run: Run, factor: float) -> Run:
    """The same run with every phase `factor` times as long."""
    rows = run.iterations
    run._tables["iterations"] = rows.assign(host_s=rows["host_s"] * factor)
    return run


@pytest.fixture
def pair(tmp_path: Path) -> list[Run]:
    """Two runs of the same cases, the second taking 1.2 times as long."""
    first, second = (load_run(records.write_record(tmp_path)) for _ in range(2))
    return [first, slowed(second, 1.2)]


def test_ratio_is_of_the_medians(pair: list[Run]) -> None:
    table = run_comparison(pair)
    assert table["run"].tolist() == [0, 1] * 4
    baseline, second = table[table["case"] == TRAIN].to_dict("records")
    wall_s = sum(records.TRAIN_PHASES.values())
    assert baseline["median_s"] == pytest.approx(wall_s * 1.0045)
    assert (baseline["ratio"], baseline["baseline"]) == (1, 0)
    assert second["ratio"] == pytest.approx(1.2)
    # The times of a run differ by 0.9 %, so no resampled ratio can be further off than that.
    assert 1.2 / 1.009 <= second["ratio_low"] < 1.2 < second["ratio_high"] <= 1.2 * 1.009
    assert second["samples_per_s"] == pytest.approx(8 / (1.2 * wall_s * 1.0045))


def test_the_interval_of_equal_runs_holds_one(tmp_path: Path) -> None:
    runs = [load_run(records.write_record(tmp_path)) for _ in range(2)]
    second = run_comparison(runs).query("run == 1")
    assert (second["ratio"] == 1).all()
    assert (second["ratio_low"] < 1).all()
    assert (second["ratio_high"] > 1).all()


def test_only_cases_of_several_runs_are_compared(tmp_path: Path) -> None:
    runs = [load_run(records.write_record(tmp_path, sizes=sizes)) for sizes in [(32, 64), (64, 224), (224, 64)]]
    found = run_comparison(runs).query("case.str.contains('train')")[["case", "run", "baseline"]].to_numpy().tolist()
    assert found == [
        ["resnet50-64-b8-train-fp32-cpu", 0, 0], ["resnet50-64-b8-train-fp32-cpu", 1, 0],
        ["resnet50-64-b8-train-fp32-cpu", 2, 0], [TRAIN, 1, 1], [TRAIN, 2, 1],
    ]  # fmt: skip


def test_a_case_that_failed_in_one_run_has_no_ratio(tmp_path: Path) -> None:
    runs = [load_run(records.write_record(tmp_path, sizes=(64,), modes=("train",), oom=True)) for _ in range(2)]
    failed = run_comparison(runs).query("status == 'oom'")
    assert failed[["median_s", "baseline", "ratio"]].isna().all().all()
    assert "n/a (oom: out of memory: asked for 64.0 GB)" in comparison(runs)


def test_shows_times_ratio_and_phases(pair: list[Run]) -> None:
    html = comparison(pair).replace("\N{NO-BREAK SPACE}", " ")
    assert html.count("<tbody ") == 4
    of_case = html.split(TRAIN)[2].split("</tbody>")[0]
    for text in ("100 ms", "121 ms", "baseline", "1.200", 'class="tb-slower"', "362 MB", "backward 50.0 %"):
        assert text in of_case


def test_a_faster_run_is_marked_faster(tmp_path: Path) -> None:
    first, second = (load_run(records.write_record(tmp_path, sizes=(32,), modes=("train",))) for _ in range(2))
    html = comparison([first, slowed(second, 0.5)])
    assert 'class="tb-faster"' in html
    assert "0.500" in html
    assert 'style="width:50.0%"' in html


@pytest.mark.parametrize("sizes", [[(32,), (64,)], [(), ()], [(32,), ()]])
def test_runs_with_nothing_in_common_say_so(tmp_path: Path, sizes: list[tuple[int, ...]]) -> None:
    runs = [load_run(records.write_record(tmp_path, sizes=of_run)) for of_run in sizes]
    assert run_comparison(runs).empty
    assert "no case in common" in comparison(runs)


def test_a_run_without_a_memory_table_says_why(tmp_path: Path) -> None:
    paths = [records.write_record(tmp_path, sizes=(32,), modes=("train",)) for _ in range(2)]
    records.drop_table(paths[0], "memory")
    assert "n/a (" in comparison([load_run(path) for path in paths])


def test_too_few_iterations_have_no_interval(tmp_path: Path) -> None:
    runs = [load_run(records.write_record(tmp_path, sizes=(32,), modes=("train",))) for _ in range(2)]
    runs[1]._tables["iterations"] = runs[1].iterations.query("iteration < 3")
    assert "n/a (fewer than 6 iterations)" in comparison(runs)


def test_names_are_escaped(tmp_path: Path) -> None:
    paths = [records.write_record(tmp_path, sizes=(32,), modes=("train",)) for _ in range(2)]
    for path in paths:
        for table in json.loads((path / "run.json").read_text())["tables"]:
            records.drop_table(path, table)
        manifest = json.loads((path / "run.json").read_text())
        manifest["cases"][0] |= {"case": "<b>case</b>", "status": "error", "reason": "<i>reason</i>"}
        (path / "run.json").write_text(json.dumps(manifest))
    html = comparison([load_run(path) for path in paths])
    assert "&lt;b&gt;case" in html
    assert "&lt;i&gt;reason" in html
    assert "<b>" not in html
    assert "<i>" not in html


def test_compares_what_pandas_calls_missing(tmp_path: Path) -> None:
    run = load_run(records.write_record(tmp_path, sizes=(), oom=True))
    assert pd.isna(run_comparison([run, run])["ratio"]).all()


def test_options_that_differ_are_told(tmp_path: Path) -> None:
    paths = [records.write_record(tmp_path, sizes=(32,), modes=("train",)) for _ in range(2)]
    assert "Options differ" not in comparison([load_run(path) for path in paths])
    manifest = json.loads((paths[1] / "run.json").read_text())
    manifest["options"] |= {"threads": 1, "channels_last": True}
    (paths[1] / "run.json").write_text(json.dumps(manifest))
    words = " ".join(comparison([load_run(path) for path in paths]).split())
    assert "Options differ: threads 2 / 1; channels last False / True." in words


def test_trainings_are_compared_by_the_time_of_an_epoch(tmp_path: Path) -> None:
    paths = [records.write_training(tmp_path), records.write_training(tmp_path, until=None)]
    runs = [load_run(path) for path in paths]
    rows = runs[1].table("stages")
    runs[1]._tables["stages"] = rows[rows["number"] < 5].assign(host_s=rows["host_s"] * 2)
    for entry in runs[1].manifest["cases"][:2]:
        entry["passes"]["training"]["num_epochs"] = 4
    assert run_comparison(runs).empty
    table = training_comparison(runs)
    assert table["run"].tolist() == [0, 1] * 3
    assert table["epoch_s"].tolist()[:2] == [12.5, 25.0]
    assert table["ratio"].tolist()[:2] == [1, 2]
    html = comparison(runs).replace("\N{NO-BREAK SPACE}", " ")
    assert html.count("<tbody ") == 3
    of_case = html.split("resnet18-32-b10-train-fp32-cpu")[2].split("</tbody>")[0]
    for text in ("62.5 s", "100 s", "2.000", "baseline", "49.5 s", "n/a (no target was given)", "training 80.0 %"):
        assert text in of_case
    assert "2 epochs, diverged" in html
    assert "Ratios are of median iteration times" not in html


def test_a_training_without_an_epoch_says_why(tmp_path: Path) -> None:
    paths = [records.write_training(tmp_path, diverged=False) for _ in range(2)]
    manifest = json.loads((paths[1] / "run.json").read_text())
    manifest["cases"][0] |= {"status": "oom", "reason": "out of memory"}
    (paths[1] / "run.json").write_text(json.dumps(manifest))
    records.drop_table(paths[1], "stages")
    html = comparison([load_run(path) for path in paths])
    assert "n/a (oom: out of memory)" in html
    assert "62.5 s" in html


def test_inferences_are_compared_by_their_batches_and_by_their_totals(tmp_path: Path) -> None:
    runs = [load_run(records.write_inference(tmp_path)) for _ in range(2)]
    rows = runs[1].table("stages")
    runs[1]._tables["stages"] = rows.assign(host_s=rows["host_s"] * 3)
    assert inference_comparison(runs)["ratio"].tolist() == pytest.approx([1, 3] * 2)
    assert run_comparison(runs)["ratio"].tolist() == [1] * 4
    html = comparison(runs)
    assert html.count("<tbody ") == 4
    for text in ("5.65 s", "5.26 s", "3.000", "p50 50.5 ms", "load 600 ms"):
        assert text in html


def test_a_training_and_a_profile_have_no_case_in_common(record: Path, tmp_path: Path) -> None:
    runs = [load_run(record), load_run(records.write_training(tmp_path))]
    assert "no case in common" in comparison(runs)
