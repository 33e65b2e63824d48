"""The chapters of the studies: published values as in the publications, this machine's next to them, deviations."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from support.kinds_of_runs import RUNS
from support.operation_records import Operations
from support.pages import Page
from support.pairs import write_northeastern

from charact.record.reader import Run, load_run
from charact.studies.commands._run import _chapter, _subtitle
from charact.studies.study import SCALES, Scale, Study, all_studies
from charact.sweeps.definition import SweepCase
from charact.sweeps.directory import CaseStatus, Outcome, State
from charact.views.document import Block, Body
from charact.views.html.report import chapters_report
from charact.views.tables.model import Column, table

STUDIES = all_studies()


def case(state: State = "ok", **options: str) -> CaseStatus:
    outcome = Outcome(state, 0, "" if state == "ok" else "too large", None, 1.0, "here", "2026-11-25", 1)
    return CaseStatus(SweepCase("train", tuple(sorted(options.items())), 1), state, outcome)


def words(body: Body) -> str:
    return Page(chapters_report("Studies", "", [("one", "One", body)])).words.replace("\u00a0", " ")


def block(body: Body, title: str) -> Block:
    (found,) = [each for each in body.blocks if each.title == title]
    return found


def cells(found: Block, row: int) -> dict[str, str]:
    assert found.table is not None
    return {column.title: cell.text for column, cell in
            zip(found.table.columns, found.table.rows[row].cells, strict=True)}


@pytest.mark.parametrize(("name", "published"), [
    ("aalto", ["38 min 37 s", "17 min 1 s", "7 h 36 min", "3 h 55 min", "9.01 s", "50.7 s", "1.88 s", "22.9 s"]),
    ("northeastern", ["47 min 15 s", "16 min 59 s", "8 min 25 s", "87.1 %", "95.7 %", "× 2.78", "× 2.87"]),
    ("dlbricks", ["14.1 %", "× 0.92", "× 4.40"]),
    ("deep500", ["axis from 0 to 700 ms", "1, 0.46, 1.00, 1.00, 4.02, 5.65"]),
])
def test_published_values_are_there_before_anything_ran(name: str, published: list[str]) -> None:
    text = words(STUDIES[name].chapter([]))
    assert [value for value in published if value not in text] == []


@pytest.fixture(scope="module")
def runs_of_every_kind(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return {kind: load_run(write(tmp_path_factory.mktemp("runs"))) for kind, write in RUNS.items()}


@pytest.mark.slow_variants
@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_a_chapter_is_built_from_any_runs(study: Study, runs_of_every_kind: dict[str, Run]) -> None:
    for runs in ([], *([run] for run in runs_of_every_kind.values()), list(runs_of_every_kind.values())):
        body = study.chapter(runs)
        assert body.blocks[0].title == "Claims"
        shown = words(body)
        assert [text for text in ("nan", "None", "NaT", "inf ") if text in shown.split()] == []


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_a_chapter_ends_with_its_deviations_and_failures(study: Study, scale: Scale) -> None:
    body = _chapter(study, scale, [], [case(), case("failed", workload="vgg16")])
    deviations, failed = body.blocks[-2:]
    assert deviations.title == "Deviations from the publication"
    assert deviations.note == " ".join(study.deviations[scale])
    assert failed.missing == [("train vgg16", "too large")]
    assert f"After: {study.source}. A published number agrees if" in body.lead


def test_tables_after_the_claims_state_once_what_all_rows_share() -> None:
    rows = pd.DataFrame({"name": list("abcd"), "method": "predicted", "size": list("wxyz")})
    shown = table(rows, "Sizes", [Column("name", "Name"), Column("method", "Method"), Column("size", "Size")])
    study = replace(STUDIES["aalto"], chapter=lambda runs: Body(blocks=[Block(table=shown), Block(table=shown)]))
    claims, sizes, _ = _chapter(study, "quick", [], []).blocks
    assert claims.table == shown
    assert sizes.table is not None
    assert [column.title for column in sizes.table.columns] == ["Name", "Size"]
    assert sizes.table.note == "The same in every row: Method predicted."


@pytest.mark.parametrize(("found", "line"), [
    ([case(), case(synthetic="classes=10")], "All data are synthetic. Quick form"),
    ([case(data="mnist"), case(synthetic="classes=10")], "Real data: mnist; all others are synthetic. Quick form"),
    ([case(data="mnist", split="test"), case(data="cifar10")],
     "Real data: cifar10, mnist (of mnist the test split alone); all others are synthetic. Quick form"),
])
def test_the_first_line_names_the_data(found: list[CaseStatus], line: str) -> None:
    assert _subtitle("quick", found).startswith(line)


def test_a_set_of_operations_is_the_sum_of_forward_times(tmp_path: Path) -> None:
    run: Run = (Operations(tmp_path)
                .add("gemm:64x64x64", {"forward": 0.5, "backward_input": 7.0}, suite="vo", set="dmm")
                .add("gemm:128x64x64", {"forward": 0.25}, suite="vo", set="dmm").run())
    found = block(STUDIES["aalto"].chapter([run]), "Basic operations: time by set")
    row = cells(found, 0)
    assert list(row)[:3] == ["Set", "Here", "RTX 2060 (setup 1)"]
    assert (row["Set"], row["Here"], row["Operations"]) == ("DMM, dense products", "750 ms", "2")
    assert row["RTX 2060 (setup 1)"] == "1.88 s"
    assert cells(found, 1)["Here"] == "n/a (not run)"


def test_dense_counterparts_of_sparse_products_do_not_count(tmp_path: Path) -> None:
    run = (Operations(tmp_path)
           .add("sparse_gemm:64x64x64:d0.9:csr", {"forward": 0.5}, suite="vo", set="smm", layout="csr")
           .add("sparse_gemm:64x64x64:d0.9:dense", {"forward": 0.1}, suite="vo", set="smm", layout="dense").run())
    assert cells(block(STUDIES["aalto"].chapter([run]), "Basic operations: time by set"), 1)["Here"] == "500 ms"


def test_a_training_is_extrapolated_to_the_published_epochs(tmp_path: Path) -> None:
    run = load_run(write_northeastern(tmp_path, "mnist", {"googlenet": 80.0, "resnet18": 40.0}, num_epochs=2))
    body = STUDIES["northeastern"].chapter([run])
    row = cells(block(body, "Training time of 10 epochs"), 1)  # 8,000 samples in 80 s: 60,000 samples, 10 times
    assert (row["Workload"], row["Data"], row["Here"]) == ("googlenet", "mnist", "1 h 40 min")
    assert row["P100"] == "15 min 14 s"
    assert row["Here over P100"] == "× 0.152"  # 914 s / 6,000 s


def test_an_extrapolation_has_an_interval_and_names_what_it_stands_for(tmp_path: Path) -> None:
    run = load_run(write_northeastern(tmp_path, "synthetic", {"googlenet": 80.0}, num_epochs=2))
    # Half of the interval is 10 % in each of two equal epochs: 7.07 % of both.
    run._tables["stages"] = run.stages.assign(interval_frac=0.1)
    found = block(STUDIES["northeastern"].chapter([run]), "Training time of 10 epochs")
    rows = [cells(found, number) for number in range(6)]
    ours = {row["Data"]: row for row in rows if row["Workload"] == "googlenet"}
    assert ours["mnist"]["Here"] == "1 h 40 min"
    assert ours["mnist"]["95 % interval"] == "1 h 33 min – 1 h 47 min"
    assert ours["cifar10"]["Of"] == "synthetic, 2 epochs: one run for cifar10 and mnist and kmnist"
    without = load_run(write_northeastern(tmp_path, "mnist", {"googlenet": 80.0}, num_epochs=2))
    row = cells(block(STUDIES["northeastern"].chapter([without]), "Training time of 10 epochs"), 1)
    assert row["95 % interval"] == "n/a (fewer than 3 batches, or an older record)"
    assert row["Of"] == "mnist, 2 epochs"
