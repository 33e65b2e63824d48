"""The report of trainings and inferences: its numbers, which sections it has, names escaped, and what is missing."""

import re
from pathlib import Path

import pytest
from support import records
from support.pages import HOSTILE, Page, row_of, words_in, words_of

from charact.record.manifest import typed_entry
from charact.record.reader import Run, load_run
from charact.record.writer import RunWriter
from charact.views.html.report import report, sections
from charact.views.tables.format import OF_NO_TASK

FIRST = "resnet18-32-b10-train-fp32-cpu"


def record_of(tmp_path: Path, entry: dict, tables: dict) -> Run:
    writer = RunWriter(tmp_path, "r", {})
    writer.add_case(typed_entry(entry), tables)
    return load_run(writer.close("complete"))


@pytest.fixture(scope="module")
def of_training(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The sections of a training by their ids."""
    run = load_run(records.write_training(tmp_path_factory.mktemp("runs")))
    return {part.id: part.html for part in sections(run)}


def test_a_training_has_the_sections_of_a_training(of_training: dict[str, str]) -> None:
    parts = words_in(of_training)
    assert list(parts) == ["summary", "training", "machine", "method"]
    for text in ("62.5 s for 5 epochs", "training 50.0 s, validation 10.0 s, checkpointing 2.50 s", "2 min 5 s",
                 "best accuracy, epoch 4 96.0 %", "to accuracy 95.0 % 49.5 s", "diverged",
                 "the loss was nan in iteration 17 of epoch 3", "25.0 s for 2 of 5 epochs",
                 "n/a (not reached in 2 epochs)", "1 of them failed"):
        assert text in parts["summary"]
    assert "Time to target" in parts["method"]
    assert "timing pass" not in parts["method"]


def test_the_tables_of_a_training(of_training: dict[str, str]) -> None:
    html = of_training["training"]
    assert row_of(html, "Epochs", "batch 10", "2") == [
        "batch 10", "2", "10.0 s", "2.00 s", "500 ms", "24.5 s", "1", "78.0 %", "1.20", "80.0 %"]
    training = row_of(html, "Trainings", "batch 10")
    assert training[1:] == ["5", "5", "8,000", "2,000", "1.50 s", "0", "weights/resnet18.pt"]
    stage = row_of(html, "Time by stage and phase of batch 10", "training", "backward")
    assert stage == ["training", "backward", "20.0 s", "32.0 %"]
    assert row_of(html, "What was changed from northeastern", "input_sizes") == ["input_sizes", "224", "32"]
    assert html.count("Protocol: northeastern") == 1
    assert "Not stated there: the seed." in html


def test_an_inference_has_the_sections_of_an_inference(tmp_path: Path) -> None:
    parts = words_of(load_run(records.write_inference(tmp_path)))
    assert list(parts) == ["summary", "inference", "iterations", "phases", "machine", "method"]
    for text in ("5.65 s with a cold load", "5.26 s with a warm one", "batch, p50 50.5 ms", "batch, p99 99.0 ms"):
        assert text in parts["summary"]
    for text in ("accuracy 93.0 %", "42.9 MiB", "90.1 ms", "95.1 ms", "400 ms", "60.0 ms"):
        assert text in parts["inference"]
    assert "median of several" in parts["method"]


def test_one_batch_size_says_why_there_is_no_curve(tmp_path: Path) -> None:
    run = record_of(tmp_path, records.inference_entry("r", 8), records.inference_tables(8))
    assert "n/a (one batch size only: give --batch-sizes two)" in words_of(run)["inference"]


@pytest.mark.slow_variants
@pytest.mark.parametrize(("data", "told"), [("synthetic", True), ("cifar10", False)])
def test_what_is_learned_of_synthetic_data_is_told_to_be_nothing(tmp_path: Path, data: str, told: bool) -> None:
    trained = record_of(tmp_path / "t", {**records.training_entry("r", 8), "data": data}, records.training_tables(8))
    ran = record_of(tmp_path / "i", {**records.inference_entry("r", 8), "data": data}, records.inference_tables(8))
    assert (OF_NO_TASK in words_of(trained)["training"]) is told
    assert (OF_NO_TASK in words_of(ran)["inference"]) is told


@pytest.mark.slow
def test_a_profile_has_neither(record: Path) -> None:
    assert not {"training", "inference"} & set(words_of(load_run(record)))


def test_what_failed_at_once_says_why(tmp_path: Path) -> None:
    for name, mode in (("training", "train"), ("inference", "infer")):
        entry = records.case_entry("r", 32, mode, status="oom", reason="out of memory: asked for 64.0 GB")
        entry["passes"] = {name: {"status": "failed", "reason": "out of memory: asked for 64.0 GB"}}
        parts = words_of(record_of(tmp_path / name, entry, {}))
        assert list(parts) == ["summary", "machine", "method", "unavailable"]
        assert "out of memory: asked for 64.0 GB" in parts["summary"]
        assert parts["unavailable"] == (
            f"What the run lacks, and why {name.capitalize()} n/a (out of memory: asked for 64.0 GB)")


def test_a_killed_training_shows_the_epochs_it_had_finished(tmp_path: Path) -> None:
    entry = records.training_entry("r", 10, num_epochs=2) | {"status": "running"}
    writer = RunWriter(tmp_path, "r", {})
    writer.add_case(typed_entry(entry), records.training_tables(10, num_epochs=2))
    parts = words_of(load_run(writer.directory, partial=True))
    assert "running not finished: it was killed, or is still running" in parts["summary"]
    assert "25.0 s for 2 of 5 epochs" in parts["summary"]


def test_a_metric_that_cannot_be_told_says_why(tmp_path: Path) -> None:
    tables = records.training_tables(10)
    tables["metrics"] += [{"stage": "validation", "number": number, "metric": "bleu", "reason": "no sacrebleu here"}
                          for number in range(1, 6)]
    run = record_of(tmp_path, records.training_entry("r", 10), tables)
    html = {part.id: part.html for part in sections(run)}["training"]
    assert "n/a (no sacrebleu here)" in html
    assert "bleu of each epoch" not in html


def test_a_load_that_could_not_be_cold_says_why(tmp_path: Path) -> None:
    entry, tables = records.inference_entry("r", 8), records.inference_tables(8)
    entry["passes"]["inference"]["cold_reason"] = "the page cache cannot be dropped"
    tables["stages"] = [row for row in tables["stages"] if row["stage"] != "load_cold"]
    parts = words_of(record_of(tmp_path, entry, tables))
    assert "5.26 s with a warm load" in parts["summary"]
    assert "cold load n/a (the page cache cannot be dropped)" in parts["summary"]
    assert parts["inference"].count("n/a (the page cache cannot be dropped)") == 1


@pytest.mark.slow
def test_compile_times_are_shown_where_there_are_any(record: Path, tmp_path: Path) -> None:
    entry = records.case_entry("r", 32, "train")
    entry["passes"]["timing"]["compile_s"] = 12.34
    parts = words_of(record_of(tmp_path, entry, records.case_tables("train", 32)))
    assert "compiled in 12.3 s" in parts["summary"]
    assert "12.3 s" in parts["method"]
    plain = words_of(load_run(record))
    assert "compiled" not in plain["summary"]
    assert "n/a (not compiled)" in plain["method"]
    inferred = records.inference_entry("r", 8)
    inferred["passes"]["inference"]["compile_s"] = 7.5
    shown = words_of(record_of(tmp_path / "infer", inferred, records.inference_tables(8)))
    assert "compiled in 7.50 s" in shown["summary"]


def test_hostile_names_are_only_ever_text(tmp_path: Path) -> None:
    entry, tables = records.training_entry(HOSTILE, 10), records.training_tables(10)
    entry["passes"]["training"]["protocol"] = {
        "name": HOSTILE, "source": HOSTILE, "unstated": HOSTILE, "changed": {HOSTILE: [HOSTILE, HOSTILE]}}
    for row in tables["metrics"]:
        row["metric"] = HOSTILE if row["metric"] == "accuracy" else row["metric"]
    entry["passes"]["training"]["best"]["metric"] = HOSTILE
    writer = RunWriter(tmp_path, HOSTILE, {})
    writer.add_case(typed_entry(entry), tables)
    for batch_size in (1, 8):
        inferred = records.inference_entry(HOSTILE, batch_size)
        inferred["passes"]["inference"]["weights"] = HOSTILE
        writer.add_case(typed_entry(inferred), records.inference_tables(batch_size))
    run = load_run(writer.close("complete"))
    text = report([run, run])
    assert "<script>alert" not in text
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert page.words.count(HOSTILE) > 20


@pytest.mark.slow
def test_runs_of_all_kinds_begin_with_a_table_of_each(record: Path, tmp_path: Path) -> None:
    runs = [load_run(path) for path in (record, records.write_training(tmp_path), records.write_inference(tmp_path))]
    text = report(runs)
    overview = text[text.index('id="overview"') : text.index("</article>")]
    assert [overview.count(f"{run.run_id}</td>") for run in runs] == [4, 3, 2]
    captions = re.findall(r"<caption>(.*?)</caption>", overview)
    assert captions == ["Every profiled case of every run", "Headline numbers of each training",
                        "Headline numbers of each inference"]  # fmt: skip
    ids = [attributes["id"] for tag, attributes in Page(text).tags if tag != "path" and "id" in attributes]
    assert len(ids) == len(set(ids))
