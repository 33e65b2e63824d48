"""What the gate and the explanations say: JUnit, Markdown, tables and the waterfall, of known records."""

from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.compared import CASE, scattered, side

from charact.analysis.compare import Group
from charact.analysis.compare.differences import NUM_STEPS, differences, operator_steps, phase_steps
from charact.analysis.compare.gate import judge
from charact.analysis.compare.thresholds import parse
from charact.views.export.junit import junit
from charact.views.export.markdown import summary
from charact.views.figures.comparison import waterfall
from charact.views.html import comparison as section
from charact.views.html.drawing import svg
from charact.views.tables import format as fmt
from charact.views.tables.difference_tables import explanations
from charact.views.tables.gate_tables import gate_table, headline

HOSTILE = "<new|`&>"


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> list[Group]:
    """A baseline, and a side of a hostile name whose backward is a fifth slower."""
    out = tmp_path_factory.mktemp("compared")
    return [side("base", scattered(out, seed=1)),
            side(HOSTILE, scattered(out, {"backward": 1.2}, seed=2, options={"threads": 4}))]


@pytest.fixture(scope="module")
def judged(sides: list[Group]) -> pd.DataFrame:
    return judge([parse(rule) for rule in ("accuracy < 0.99", "time > 1.05", "time > 1.5")], sides)


def test_disturbed_runs_are_marked(tmp_path: Path) -> None:
    base, new = scattered(tmp_path, seed=1), scattered(tmp_path, {"backward": 1.2}, seed=2)
    new.manifest["cases"][0]["passes"]["timing"]["core_use"] = {
        "length_s": 10.0, "num_usable_cores": 2, "processor_s": 10.0, "others_s": 14.0, "waiting_s": 9.0}
    sides = [side("base", base), side("new", new)]
    judged = judge([parse("time > 1.05")], sides)
    assert gate_table(judged, sides).note.endswith("Other programs disturbed cases in 1 run: measure these again.")
    assert "other programs held 1.4 of 2 cores" in summary(judged, sides)


class TestJUnit:
    def test_it_counts_and_names_what_failed(self, judged: pd.DataFrame) -> None:
        root = ElementTree.fromstring(junit(judged).encode())
        assert root.tag == "testsuites"
        assert {key: root.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
            "tests": "3", "failures": "1", "errors": "0", "skipped": "1"}
        suites = root.findall("testsuite")
        assert [suite.get("name") for suite in suites] == ["accuracy < 0.99", "time > 1.05", "time > 1.5"]
        for suite in suites:
            assert suite.get("tests") == str(len(suite.findall("testcase")))
            for outcome, count in (("failure", "failures"), ("skipped", "skipped")):
                assert suite.get(count) == str(len(suite.findall(f"testcase/{outcome}")))
        failure = root.find("testsuite/testcase/failure")
        assert failure is not None
        assert failure.get("message", "").startswith("regression: ")
        assert "95 % interval" in failure.get("message", "")
        assert [test.get("name") for test in root.iter("testcase")] == [CASE] * 3
        skipped = root.find("testsuite/testcase/skipped")
        assert skipped is not None
        assert skipped.get("message") == "n/a (not measured)"

    def test_what_xml_cannot_hold_is_replaced(self, judged: pd.DataFrame) -> None:
        root = ElementTree.fromstring(junit(judged.assign(side="<new\x1b[0m&\ufffe>")).encode())
        assert {test.get("classname") for test in root.iter("testcase")} == {"<new\ufffd[0m&\ufffd>"}

    @given(st.text())
    def test_any_name_gives_xml(self, name: str) -> None:
        row = dict.fromkeys(["base", "value", "ratio", "low", "high", "p_value"], float("nan"))
        frame = pd.DataFrame([row | {"case": name, "side": name, "rule": "time > 1.05", "metric": "time",
                                     "outcome": "n/a", "reason": name}])
        assert len(list(ElementTree.fromstring(junit(frame).encode("utf-8", "surrogatepass")).iter("skipped"))) == 1


class TestWords:
    def test_the_headline_counts(self, judged: pd.DataFrame) -> None:
        assert headline(judged) == "1 regression; 1 ok, 1 n/a"
        assert headline(judged.query("outcome == 'ok'")) == "no regressions; 1 ok"
        assert headline(pd.concat([judged] * 2).query("outcome == 'regression'")) == "2 regressions"

    def test_regressions_come_first_and_nothing_is_left_empty(self, judged: pd.DataFrame, sides: list[Group]) -> None:
        table = gate_table(judged, sides)
        assert [row.cells[0].text for row in table.rows] == ["regression", "n/a (not measured)", "ok"]
        assert all(cell.text for row in table.rows for cell in row.cells)

    def test_single_runs_are_told_to_know_nothing_of_others(self, judged: pd.DataFrame, sides: list[Group]) -> None:
        words = "The interval of a single run does not cover"
        assert words in gate_table(judged, sides).note
        assert words not in gate_table(judged, [side(each.label, *each.runs * 2) for each in sides]).note
        assert words not in gate_table(judged.query("metric == 'accuracy'"), sides).note


class TestExplanation:
    def test_the_phase_that_was_slowed_is_told_with_its_operator(self, sides: list[Group]) -> None:
        (found,) = explanations(*sides)
        assert (found.case, found.significant) == (CASE, True)
        phases, operators, layers = found.tables
        slower = [row.cells[0].text for row in phases.rows if row.cells[-1].text == "differs (one run each)"]
        assert slower == ["backward", "iteration"]
        assert phases.rows[-1].cells[0].text == "iteration"
        assert [cell.text for cell in operators.rows[0].cells[:2]] == ["backward", "aten::mkldnn_convolution_backward"]
        assert [table.columns[-1].title for table in (operators, layers)] == ["Difference", "Difference"]
        assert "Most of backward’s is in aten::mkldnn_convolution_backward of layer " in phases.note
        assert "Most of forward" not in phases.note
        assert [cell.text for cell in layers.rows[0].cells[:2]] == ["backward", "aten::mkldnn_convolution_backward"]
        assert "kernels of base and " in phases.note

    @pytest.mark.slow
    def test_a_verdict_that_its_difference_contradicts_tells_what_it_is_of(self, tmp_path: Path) -> None:
        base = [scattered(tmp_path, seed=seed) for seed in (1, 2, 3)]
        new = [scattered(tmp_path, {"update": 1.2}, seed=seed) for seed in (4, 5, 6)]
        for run in base:  # every tenth update takes long, which the mean share shows and the median does not
            rows = run.iterations
            rows.loc[(rows["phase"] == "update") & (rows["iteration"] % 10 == 0), "host_s"] *= 5
        (found,) = explanations(side("base", *base), side("new", *new))
        cells = {row.cells[0].text: [cell.text for cell in row.cells] for row in found.tables[0].rows}
        assert cells["update"][3].startswith("−")
        assert cells["update"][-1] == "slower by its own median"
        assert "Most of update" not in found.tables[0].note

    def test_changed_shapes_can_be_broken_between(self, tmp_path: Path) -> None:
        runs = [scattered(tmp_path, seed=seed) for seed in (1, 2)]
        for run, side_length in zip(runs, (16, 32), strict=True):
            run.operators["input_shapes"] = f"[[8,3,{side_length}],[64,3]]"
        (found,) = explanations(side("base", runs[0]), side("new", runs[1]))
        changes = [row.cells[-1].text for row in found.tables[1].rows]
        assert any("[[8,3,16], [64,3]] → [[8,3,32], [64,3]]" in each for each in changes)

    def test_markdown_begins_with_the_outcome(self, judged: pd.DataFrame, sides: list[Group]) -> None:
        text = summary(judged, sides)
        assert text.startswith("# charact: 1 regression; 1 ok, 1 n/a (\\<new")
        for words in ("mkldnn\\_convolution\\_backward", "| options threads | 2 | 4 |"):
            assert words in text
        assert "<new" not in text.replace("\\<new", "")

    def test_without_a_regression_nothing_is_explained(self, judged: pd.DataFrame, sides: list[Group]) -> None:
        assert "mkldnn" not in summary(judged[judged["outcome"] != "regression"], sides)

    def test_steps_lead_from_one_median_to_the_other(self, sides: list[Group]) -> None:
        rows = differences(*sides, CASE)
        phases = rows[rows["level"] == "phase"]
        for steps in (phase_steps(rows), operator_steps(rows)):
            assert steps["start_s"].iloc[0] == pytest.approx(phases["base_s"].sum())
            assert steps["end_s"].iloc[-1] == pytest.approx(phases["new_s"].sum())
            assert steps["start_s"].tolist()[1:] == pytest.approx(steps["end_s"].tolist()[:-1])
        names = operator_steps(rows)["name"].tolist()
        assert names[0] == "backward: aten::mkldnn_convolution_backward"
        assert len(names) == NUM_STEPS + 1
        assert names[-1].endswith(" others")

    def test_a_step_of_nothing_can_be_drawn(self, sides: list[Group]) -> None:
        steps = phase_steps(differences(sides[0], side("again", *sides[0].runs), CASE))
        assert "backward  ±0 s" in svg(waterfall("Phases", steps, ("a", "b")))

    def test_the_section_escapes_names_and_explains_each_side(self, sides: list[Group]) -> None:
        body = section.explanations([*sides, side("third", *sides[0].runs)])
        titles = [block.title for block in body.blocks if block.figures]
        assert titles == [f"{CASE}: {HOSTILE}", f"{CASE}: third"]
        assert all(HOSTILE not in svg(figure) for block in body.blocks for figure in block.figures)


@pytest.mark.parametrize(("value", "words"), [(0.0031, "+3.10 ms"), (-0.5, "−500 ms"), (0.0, "±0 s")])
def test_changes_carry_their_sign(value: float, words: str) -> None:
    assert fmt.change(value) == words
