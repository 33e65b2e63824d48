import io
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from support import pairs, records
from support.compared import CASE, scattered

from charact.analysis.compare import Group
from charact.record.published import reference
from charact.record.reader import Run, load_run
from charact.views.export.markdown import document, escaped
from charact.views.tables.comparison_speedups import speedup_tables
from charact.views.tables.comparison_tables import LEVELS, ratio_table, tables
from charact.views.tables.model import Table, leading
from charact.views.terminal.renderer import drawn, print_items

TRAIN = "resnet50-224-b8-train-fp32-cpu"


def sides(*runs: Run) -> list[Group]:
    return [Group(label, (run,)) for label, run in zip("abc", runs, strict=False)]


def published(*names: str) -> list[Group]:
    return [Group(name, (reference(name),)) for name in names]


def texts(table: Table | None) -> list[list[str]]:
    assert table is not None
    return [[cell.text for cell in row.cells] for row in table.rows]


def row(table: Table | None, *first: str) -> list[str]:
    return next(cells for cells in texts(table) if tuple(cells[: len(first)]) == first)


def captioned(found: list[Table], caption: str) -> Table:
    return next(table for table in found if table.caption.startswith(caption))


@pytest.fixture
def pair(tmp_path: Path) -> list[Group]:
    """Two runs of the same cases, the second taking 1.2 times as long."""
    return sides(*pairs.pair(tmp_path, 1.2))


def test_a_slower_run_is_shown_with_its_ratio(pair: list[Group]) -> None:
    cells = row(ratio_table(pair, "case"), TRAIN)
    assert cells[1:4] == ["100 ms", "121 ms", "1.200"]
    low, high = map(float, cells[4].split("–"))
    assert low < 1.2 < high
    assert cells[5] == "differs (one run each)"
    assert row(ratio_table(pair, "phase"), TRAIN, "backward")[2:5] == ["50.2 ms", "60.3 ms", "1.200"]


def test_a_run_against_itself_is_exactly_one(tmp_path: Path) -> None:
    run = load_run(records.write_record(tmp_path))
    found = ratio_table(sides(run, run), "case")
    assert {cells[3] for cells in texts(found)} == {"1.000"}
    assert {cells[5] for cells in texts(found)} == {"no difference shown"}


def test_no_difference_between_disturbed_runs_is_inconclusive(tmp_path: Path) -> None:
    run = load_run(records.write_record(tmp_path))
    (first, *_) = run.manifest["cases"]
    use = {"length_s": 1.0, "num_usable_cores": 2, "processor_s": 0.5, "others_s": 1.5, "waiting_s": 1.0}
    first["passes"]["timing"]["core_use"] = use
    found = ratio_table(sides(run, run), "case")
    verdicts = {cells[0]: cells[5] for cells in texts(found)}
    assert verdicts.pop(first["case"]) == "inconclusive (disturbed)"
    assert set(verdicts.values()) == {"no difference shown"}


def test_the_published_speedups_stand_in_workload_and_data(pair: list[Group]) -> None:
    speedups, means = speedup_tables(published("northeastern-k80", "northeastern-p100"))
    assert [column.title for column in speedups.columns] == ["Workload", "cifar10", "mnist", "kmnist"]
    assert texts(speedups) == [["googlenet", "2.78", "2.83", "2.82"], ["resnet18", "2.63", "2.82", "2.87"]]
    assert [cells[:3] for cells in texts(means)] == [
        ["googlenet", "3", "2.81"], ["resnet18", "3", "2.77"], ["all", "6", "2.79"]]


def test_speedups_name_what_tells_cases_apart(pair: list[Group]) -> None:
    speedups = speedup_tables(pair)[0]
    assert texts(speedups)[0][0] == "resnet50 train 32"
    assert re.fullmatch(r"0\.833 \(0\.\d+–0\.\d+\)", texts(speedups)[0][1])
    assert len({cells[0] for cells in texts(speedups)}) == 4


def test_cases_that_no_column_tells_apart_have_a_row_each(tmp_path: Path) -> None:
    plain, other = (pairs.pair(tmp_path / name, factor, sizes=(32,)) for name, factor in (("p", 2.0), ("c", 5.0)))
    for run in other:
        run.manifest["options"]["channels_last"] = True
    (found, _) = speedup_tables([Group("a", (plain[0], other[0])), Group("b", (plain[1], other[1]))])
    assert [[name, speedup[:5]] for name, speedup in texts(found)] == [
        [f"resnet50-32-b8-{mode}-fp32-cpu (channels last: {told})", speedup]
        for told, speedup in (("no", "0.500"), ("yes", "0.200")) for mode in ("train", "infer")]


def test_a_case_that_failed_is_told_with_its_reason(tmp_path: Path) -> None:
    both = pairs.pair(tmp_path, 2.0, modes=("train",))
    failed = both[1].manifest["cases"][1]
    failed |= {"status": "oom", "reason": "out of memory"}
    both[1]._tables["iterations"] = both[1].iterations[both[1].iterations["case"] != failed["case"]]
    (found, _) = speedup_tables(sides(*both))
    assert texts(found) == [["resnet50 32", "0.500 (0.498–0.502)"], ["resnet50 224", "n/a (out of memory)"]]


def test_a_script_has_no_speedup_by_data_set(tmp_path: Path) -> None:
    run = load_run(records.write_watched(tmp_path))
    assert not speedup_tables(sides(run, run))


def test_published_numbers_say_that_they_have_no_interval() -> None:
    found = ratio_table(published("northeastern-k80", "northeastern-p100"), "case")
    assert found is not None
    assert [column.title for column in found.columns] == ["Case", "northeastern-k80", "northeastern-p100", "Ratio"]
    assert "Intervals: n/a (published without an interval)." in found.note


def test_one_s_own_trainings_stand_beside_published_ones(tmp_path: Path) -> None:
    for data, seconds in [("cifar10", 50.0), ("mnist", 45.71368)]:
        pairs.write_northeastern(tmp_path, data, {"googlenet": seconds})
    mine = Group("mine", tuple(load_run(path) for path in sorted(tmp_path.iterdir())))
    both = [*published("northeastern-p100"), mine]
    speedups = speedup_tables(both)[0]
    assert texts(speedups) == [["googlenet", "2.04", "2.00"]]
    found = tables(both, ["case"])
    assert "resnet18" in str(texts(captioned(found, "Cases without a counterpart")))
    assert row(captioned(found, "Groups"), "mine")[1] == "AMD EPYC, 2 cores on bench-1"
    # The other way round the identifiers, which do not name the data, are told apart.
    swapped = ratio_table([mine, *published("northeastern-p100")], "case")
    assert sorted(cells[0] for cells in texts(swapped)) == [
        "googlenet-224-b10-train-fp32 (cifar10)", "googlenet-224-b10-train-fp32 (mnist)"]


def test_what_is_left_out_is_listed_with_why(tmp_path: Path) -> None:
    first = load_run(records.write_record(tmp_path, sizes=(32, 64), modes=("train",), oom=True))
    second = load_run(records.write_record(tmp_path, sizes=(64,), modes=("train",), oom=True))
    found = tables(sides(first, second), ["case"])
    assert texts(captioned(found, "Cases without a counterpart")) == [
        ["resnet50-32-b8-train-fp32-cpu", "a", "b", "input size 32 here, 64 there"]]
    failed = ["resnet50-4096-b8-train-fp32-cpu", "oom", "out of memory: asked for 64.0 GB"]
    assert texts(captioned(found, "Cases that failed")) == [["a", *failed], ["b", *failed]]
    assert f"{failed[0]} n/a ({failed[2]})" in captioned(found, "Times by case").note


def test_options_and_versions_that_differ_are_listed(pair: list[Group]) -> None:
    assert not [table for table in tables(pair, ["case"]) if table.caption == "What else differs"]
    pair[1].runs[0].manifest["options"]["threads"] = 1
    pair[1].runs[0].manifest["software"]["torch"] = "2.14.0"
    found = texts(captioned(tables(pair, ["case"]), "What else differs"))
    assert ["options threads", "2", "1"] in found
    assert ["software torch", "2.13.0+cpu", "2.14.0"] in found


def test_three_sides_are_named_in_each_row(tmp_path: Path) -> None:
    slow, fast = pairs.pair(tmp_path, 0.5)
    third = load_run(records.write_record(tmp_path))
    found = ratio_table(sides(slow, fast, third), "case")
    assert row(found, TRAIN, "b")[4:] == [*row(found, TRAIN, "b")[4:6], "differs (one run each)"]
    assert row(found, TRAIN, "c")[4] == "1.000"


@pytest.mark.parametrize("by", LEVELS)
def test_nothing_is_shown_by_what_was_not_measured(by: str, tmp_path: Path) -> None:
    run = load_run(records.write_training(tmp_path, diverged=False))
    assert (ratio_table(sides(run, run), by) is None) == (by not in ("case", "phase"))


def test_what_was_asked_for_and_not_timed_is_told(pair: list[Group], tmp_path: Path) -> None:
    run = load_run(records.write_training(tmp_path, diverged=False))
    found = captioned(tables(sides(run, run), ["phase", "kernel", "layer"]), "Times not available")
    assert texts(found) == [["kernel", "n/a (no kernels in both groups: they run on GPUs only)"],
                            ["layer", "n/a (no case was timed so in both groups)"]]
    assert "Times not available" not in [table.caption for table in tables(pair, ["case", "phase"])]


def test_sides_are_headed_as_they_are_named(pair: list[Group], capsys: pytest.CaptureFixture[str]) -> None:
    print_items(tables([Group("K80", pair[0].runs), Group("P100", pair[1].runs)], ["case"]))
    headed = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("Case ")]
    assert headed[0][:4] == ["Case", "K80", "P100", "Ratio"]


def test_metrics_are_shown_in_their_units(tmp_path: Path) -> None:
    runs = [load_run(records.write_training(tmp_path, diverged=False)) for _ in range(2)]
    found = captioned(tables(sides(*runs), ["case"]), "Throughput")
    case = "resnet18-32-b10-train-fp32-cpu"
    assert row(found, case, "samples/s")[2:4] == ["800", "800"]
    assert row(found, case, "accuracy")[2:5] == ["96.0 %", "96.0 %", "1.000"]
    assert row(found, case, "total time")[2:4] == ["62.5 s", "62.5 s"]


def test_a_pipe_gets_a_line_a_row(pair: list[Group], capsys: pytest.CaptureFixture[str]) -> None:
    print_items(tables(pair, ["case", "operator"]))
    lines = capsys.readouterr().out.splitlines()
    assert all(line == line.rstrip() for line in lines)
    line = next(line for line in lines if line.startswith(TRAIN))
    assert "1.200" in line
    assert line.endswith("differs (one run each)")


@pytest.mark.slow_variants
@pytest.mark.parametrize(("slowness", "verdict"), [(1.2, "slower"), (0.8, "faster")])
def test_repeats_have_a_direction(tmp_path: Path, slowness: float, verdict: str) -> None:
    base = [scattered(tmp_path, seed=seed) for seed in range(3)]
    new = [scattered(tmp_path, dict.fromkeys(records.TRAIN_PHASES, slowness), seed=seed) for seed in range(3, 6)]
    found = tables([Group("base", tuple(base)), Group("new", tuple(new))], ["case"])
    assert row(captioned(found, "Times by case"), CASE)[-1] == verdict
    assert found[0].note == ""


def test_a_disturbed_case_is_marked(tmp_path: Path) -> None:
    base, *new = (scattered(tmp_path, seed=seed) for seed in range(4))
    for run, others_s in zip(new, (12.0, 14.0), strict=False):
        run.manifest["cases"][0]["passes"]["timing"]["core_use"] = {
            "length_s": 10.0, "num_usable_cores": 2, "processor_s": 10.0, "others_s": others_s, "waiting_s": others_s}
    found = texts(captioned(tables([Group("a", (base,)), Group("b", tuple(new))], ["case"]),
                            "Cases that other programs disturbed"))
    assert found == [["b", CASE, "2", "other programs held 1.4 of 2 cores"]]


def test_a_table_that_is_too_wide_is_parted_by_case(pair: list[Group]) -> None:
    found = ratio_table(pair, "phase")
    assert found is not None
    narrow, broad = (screen(found, width) for width in (80, 200))
    assert max(map(len, narrow)) <= 80
    assert narrow.count(TRAIN) == 1
    row_of = narrow[narrow.index(TRAIN) :]
    assert next(line for line in row_of if line.startswith("backward")).split()[:6] == [
        "backward", "50.2", "ms", "60.3", "ms", "1.200"]
    assert len([line for line in broad if line.startswith(TRAIN)]) == len(
        [row for row in found.rows if row.case == TRAIN])  # fmt: skip


def test_a_case_of_one_row_has_no_table_of_its_own(pair: list[Group]) -> None:
    found = ratio_table(pair, "case")
    assert found is not None
    assert len([line for line in screen(found, 80) if line.startswith("Case ")]) == 1


def screen(table: Table, width: int) -> list[str]:
    Console(file=(stream := io.StringIO()), width=width).print(drawn(table))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_what_single_runs_do_not_know_is_said(pair: list[Group]) -> None:
    assert "between runs" in captioned(tables(pair, ["case"]), "Groups").note
    twice = [Group(side.label, side.runs * 2) for side in pair]
    for known in (twice, published("northeastern-k80", "northeastern-p100")):
        assert captioned(tables(known, ["case"]), "Groups").note == ""


def test_one_core_is_one_core(pair: list[Group]) -> None:
    pair[1].runs[0].manifest["machine"]["cpu"]["num_usable_cores"] = 1
    assert row(captioned(tables(pair, ["case"]), "Groups"), "b")[1] == "AMD EPYC, 1 core on bench-1"


def test_a_long_table_says_how_much_it_leaves_out(pair: list[Group], capsys: pytest.CaptureFixture[str]) -> None:
    found = ratio_table(pair, "phase")
    assert found is not None
    print_items([leading(Table("Long", found.columns, found.rows * 20))])
    out = capsys.readouterr().out
    num_of_cases = Counter(row.case for row in found.rows * 20)
    assert len(num_of_cases) == 4
    left_out = sum(max(0, number - 40) for number in num_of_cases.values())
    assert left_out
    most = max(num_of_cases.values())
    assert f"The first 40 of each case; {left_out} more: --top {most} shows them, --to FILE.csv writes all" in out
    print_items([leading(Table("Long", found.columns, found.rows * 20), most)])
    assert "more:" not in capsys.readouterr().out
    for case, number in num_of_cases.items():
        assert len([line for line in out.splitlines() if line.startswith(str(case))]) == min(number, 40)


def test_the_longest_parts_are_those_of_each_side(tmp_path: Path) -> None:
    runs = pairs.pair(tmp_path, 1.2, sizes=(32,), modes=("train",))
    for run in runs:
        rows = run.operators.head(1)
        run._tables["operators"] = pd.concat([rows.assign(operator=f"aten::op{number}") for number in range(30)])
    found = ratio_table(sides(runs[0], runs[1], runs[1]), "operator", 10)
    assert found is not None
    assert Counter(row.side for row in found.rows) == {"b": 10, "c": 10}
    assert "The 10 slowest of each case, of up to 30; `charact compare --by operator --to FILE.csv`" in found.note


def test_markdown_holds_the_tables(pair: list[Group]) -> None:
    text = document("b against a", tables(pair, ["case"]))
    assert text.startswith("# b against a\n")
    assert f"| {TRAIN} | 100 ms | 121 ms | 1.200 | " in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {"---:", "---"} == {cell for line in lines if line.startswith("|---") for cell in line.strip("|").split("|")}


@pytest.mark.parametrize(("text", "shown"), [
    ("a|b", r"a\|b"), ("<b>&", r"\<b\>&amp;"), ("*x* _y_ `z`", r"\*x\* \_y\_ \`z\`"), ("two\nlines", "two lines"),
    ("[link](x)", r"\[link\](x)"), ("back\\slash", r"back\\slash"),
])
def test_markdown_shows_a_text_as_it_is(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_a_layer_s_name_breaks_no_table(tmp_path: Path) -> None:
    evil: Any = "a|b <script>\n`c`"
    runs = [load_run(records.write_record(tmp_path, layer=evil)) for _ in range(2)]
    text = document("t", tables(sides(*runs), ["layer"]))
    line = next(line for line in text.splitlines() if r"\<script\>" in line)
    assert line.replace(r"\|", "").count("|") == len(ratio_columns(runs)) + 1
    assert "<script>" not in text


def ratio_columns(runs: list[Run]) -> Any:
    found = ratio_table(sides(*runs), "layer")
    assert found is not None
    return found.columns
