"""Figures for papers: what is drawn is what the analyses return; formats, widths, captions, and runs that lack data."""

import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, QuadMesh
from matplotlib.figure import Figure
from PIL import Image
from support import brick_records, memory_records, records
from support.hostile import hostile
from support.kinds_of_runs import RUNS
from support.pages import HOSTILE
from support.pairs import write_northeastern

from charact.analysis.memory.composition import memory_peaks
from charact.analysis.profile.breakdown import iteration_operator_types, phase_breakdown
from charact.analysis.profile.case_summary import case_summary, iteration_times, phase_times
from charact.bricks.analysis.tables import normalized_latency
from charact.core.errors import UserError
from charact.record.reader import Run, load_run
from charact.record.writer import RunWriter
from charact.studies.published import training_times
from charact.views.papers._figure import LONGEST_NAME, NoData, all_figures, style, unique
from charact.views.papers._writing import CAPTIONS, write_figures

FIGURES = {figure.name: figure for figure in all_figures()}
SIZES = (32, 64, 128, 224)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load_run(records.write_record(tmp_path_factory.mktemp("run"), sizes=SIZES))


def drawn(name: str, *runs: Run) -> Figure:
    with mpl.rc_context(style()):
        return FIGURES[name].draw(runs, 3.3).figure


def dots(ax: Axes) -> list[tuple[float, float]]:
    """Centers of all dots of a scatter plot."""
    return [tuple(map(float, point)) for found in ax.collections if isinstance(found, PathCollection)
            for point in found.get_offsets()]  # type: ignore[union-attr]


def line_ends(ax: Axes, color: str) -> dict[float, float]:
    """Points of all lines of a color with at least three points."""
    return {float(x): float(y) for line in ax.lines if line.get_color() == color and len(line.get_xdata()) >= 3
            for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)}


def texts(axis: Any) -> list[str]:
    axis.axes.figure.draw_without_rendering()
    return [label.get_text() for label in axis.get_ticklabels()]


def test_cells_are_shares_of_operator_time(profile: Run) -> None:
    ax = drawn("operator-types", profile).axes[0]
    (mesh,) = [found for found in ax.collections if isinstance(found, QuadMesh)]
    assert mesh.get_array() is not None
    types, rows = texts(ax.xaxis), texts(ax.yaxis)
    cells = np.asarray(mesh.get_array()).reshape(len(rows), len(types))
    expected = iteration_operator_types(profile)
    for number, case in enumerate(profile.cases["case"]):
        of_case = expected[expected["case"] == case].set_index("operator_type")["share_frac"]
        assert of_case.sum() == pytest.approx(1)
        assert {name: share for name, share in zip(types, cells[number], strict=True) if share} == pytest.approx(
            {name: 100 * share for name, share in of_case.items() if name in types})
    assert "outside operators" not in types
    assert rows[:2] == ["32 px, train", "32 px, infer"]


def test_every_iteration_has_a_mark_and_its_median_a_diamond(profile: Run) -> None:
    ax = drawn("iteration-times", profile).axes[0]
    times = iteration_times(profile)
    assert sorted(x for x, _ in dots(ax)) == pytest.approx(sorted(times["wall_s"]))
    medians = [line.get_xdata()[0] for line in ax.lines if line.get_label() == "median"]
    intervals = [list(line.get_xdata()) for line in ax.lines if line.get_label() == "interval"]
    summary = case_summary(profile)
    assert medians == pytest.approx(list(summary["median_s"]))
    assert np.asarray(intervals) == pytest.approx(summary[["low_s", "high_s"]].to_numpy(), nan_ok=True)
    assert ax.get_xlabel() == "wall time of an iteration (ms)"


def test_few_cases_have_a_panel_with_their_phases(tmp_path: Path) -> None:
    run = load_run(records.write_record(tmp_path, sizes=(32,)))
    figure = drawn("iteration-times", run)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["train", "infer"]
    for ax, case in zip(figure.axes, run.cases["case"], strict=True):
        phases = phase_times(run)
        of_case = phases[(phases["case"] == case) & (phases["time_s"] > 0)]
        walls = iteration_times(run)
        expected = sorted([*of_case["time_s"], *walls.loc[walls["case"] == case, "wall_s"]])
        assert sorted(x for x, _ in dots(ax)) == pytest.approx(expected)
        assert texts(ax.yaxis)[0] == "iteration"


def test_phases_and_iterations_are_drawn_against_the_size(profile: Run) -> None:
    figure = drawn("time-by-input-size", profile)
    phases = phase_breakdown(profile).merge(profile.cases[["case", "mode", "input_size"]], on="case")
    summary = case_summary(profile)
    for ax, mode in zip(figure.axes, ("train", "infer"), strict=True):
        points = {(round(float(x)), round(float(y), 9)) for line in ax.lines
                  for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)}
        of_mode = phases[(phases["mode"] == mode) & (phases["share_frac"] >= 0.02)]
        expected = {(row.input_size, round(row.time_s, 9)) for row in of_mode.itertuples()}
        whole = {(row.input_size, round(row.median_s, 9)) for row in summary[summary["mode"] == mode].itertuples()}
        assert whole <= points
        assert expected <= points
        assert (ax.get_xscale(), ax.get_yscale(), ax.get_title(loc="left")) == ("log", "log", mode)
        assert set(texts(ax.xaxis)) - {""} <= set(map(str, SIZES))
        assert sorted(ax.xaxis.get_major_locator()()) == sorted(SIZES)


def test_two_sizes_are_not_connected(tmp_path: Path) -> None:
    run = load_run(records.write_record(tmp_path))
    for name in ("time-by-input-size", "memory-by-input-size"):
        figure = drawn(name, run)
        assert [line for ax in figure.axes for line in ax.lines] == []
        assert {handle.get_linestyle() for handle in figure.legends[0].get_lines()} == {"None"}
        assert {round(x) for ax in figure.axes for x, _ in dots(ax)} in ({32, 224}, {32**2, 224**2})


def test_peaks_are_drawn_against_the_input_measured_and_estimated(tmp_path: Path) -> None:
    run = load_run(memory_records.write_memory(tmp_path))
    figure = drawn("memory-by-input-size", run)
    assert [ax.get_xlabel() for ax in figure.axes] == [*["sequence length (tokens)"] * 2, *["image area (pixels)"] * 2]
    peaks = memory_peaks(run).merge(run.cases[["case", "mode", "input_kind", "input_size"]], on="case")
    of_images = peaks[(peaks["input_kind"] == "image") & (peaks["mode"] == "infer")]
    lines = {line.get_linestyle(): dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
             for line in figure.axes[3].lines}
    for style_of, column in (("--", "predicted_bytes"), ("-", "measured_bytes")):
        known = of_images.dropna(subset=[column])
        assert lines[style_of] == pytest.approx(dict(zip(known["input_size"] ** 2, known[column], strict=True)))


def test_estimates_are_against_measured_peaks(tmp_path: Path) -> None:
    run = load_run(memory_records.write_memory(tmp_path))
    ax = drawn("memory-estimates", run).axes[0]
    known = memory_peaks(run).dropna(subset=["measured_bytes", "predicted_bytes"])
    expected = zip(known["measured_bytes"], known["predicted_bytes"], strict=True)
    assert sorted(dots(ax)) == [pytest.approx(point) for point in sorted(expected)]
    assert ax.get_xlim() == ax.get_ylim()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("measured peak (MiB)", "estimated peak (MiB)")


def test_constructions_are_against_measured_latencies(tmp_path: Path) -> None:
    run = load_run(brick_records.three_models(tmp_path).path)
    known = normalized_latency(run).query("phase == 'all'").dropna(subset=["latency_s", "measured_s"])
    ax = drawn("constructed-latency", run).axes[0]
    expected = zip(known["measured_s"], known["latency_s"], strict=True)
    assert sorted(dots(ax)) == [pytest.approx(point) for point in sorted(expected)]
    assert len(known)


def test_trainings_are_next_to_published_ones(tmp_path: Path) -> None:
    run = load_run(write_northeastern(tmp_path, "mnist", {"googlenet": 80.0}, num_epochs=2))
    times = training_times([run])
    # 8,000 samples in 80 s: 60,000 samples, 10 times; the published times are those of the publication's table.
    assert dict(zip(times["machine"].fillna("here"), times["total_s"], strict=True)) == pytest.approx(
        {"here": 6000, "Tesla K80": 2587.4574, "Tesla P100": 914.0}, rel=1e-3)
    ax = drawn("published-training-times", run).axes[0]
    assert sorted(x for x, _ in dots(ax)) == pytest.approx(sorted(times["total_s"]))
    assert texts(ax.yaxis) == ["googlenet, mnist"]
    assert ax.get_xlabel() == "total training time (h)"


def test_the_interval_of_a_modelled_training_is_drawn(tmp_path: Path) -> None:
    run = load_run(write_northeastern(tmp_path, "mnist", {"googlenet": 80.0}, num_epochs=2))
    run._tables["stages"] = run.stages.assign(interval_frac=0.1)
    here = training_times([run]).iloc[0]
    assert (here["low_s"], here["high_s"]) == pytest.approx((6000 * (1 - 0.1 / 2**0.5), 6000 * (1 + 0.1 / 2**0.5)))


@pytest.mark.parametrize("width_in", [3.3, 7.0])
def test_files_have_the_width_and_text_that_stays_text(profile: Run, tmp_path: Path, width_in: float) -> None:
    files, _ = write_figures([profile], "run", tmp_path, ["pdf", "svg", "png"], width_in)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)
    assert len(files) == 3 * 4 + 1
    for path in tmp_path.glob("*.pdf"):
        content = path.read_bytes()
        assert re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ", content) == [f"{72 * width_in:g}".encode()]
        assert b"/FontFile2" in content  # TrueType
        assert b"/Type3" not in content
    for path in tmp_path.glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        assert re.search(r'<svg [^>]*width="([\d.]+)pt"', text)[1] == f"{72 * width_in:g}"  # type: ignore[index]
        sizes = {float(size) for size in re.findall(r"font-size: ([\d.]+)px", text)}
        assert sizes <= {7, 8}
        assert sizes
    for path in tmp_path.glob("*.png"):
        with Image.open(path) as image:
            assert image.width == pytest.approx(300 * width_in, abs=1)


def test_equal_runs_give_equal_files(profile: Run, tmp_path: Path) -> None:
    contents = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        write_figures([profile], "run", folder, ["pdf", "svg"], 3.3)
        contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert contents[0] == contents[1]


def test_captions_say_how_it_was_measured_and_keep_those_of_other_runs(profile: Run, tmp_path: Path) -> None:
    write_figures([profile], "first", tmp_path, ["svg"], 3.3)
    write_figures([profile], "second", tmp_path, ["svg"], 3.3)
    write_figures([profile], "first", tmp_path, ["svg"], 3.3)
    text = (tmp_path / CAPTIONS).read_text(encoding="utf-8")
    names = re.findall(r"^\*\*(.*?)\*\*: ", text, re.MULTILINE)
    assert sorted(names) == sorted(path.stem for path in tmp_path.glob("*.svg"))
    captions = dict(re.findall(r"^\*\*(.*?)\*\*: (.*)$", text, re.MULTILINE))
    counted = case_summary(profile)["num_iterations"].astype(int)
    assert f"{counted.iloc[0]} timed iterations a case" in captions["first-iteration-times"]
    assert "torch.profiler" in captions["first-operator-types"]
    for caption in captions.values():
        assert "Machine: " in caption
        assert profile.manifest["hostname"] not in caption


def test_captions_of_somebody_else_are_kept(profile: Run, tmp_path: Path) -> None:
    (tmp_path / CAPTIONS).write_text("Mine")
    with pytest.raises(UserError, match="is not charact's"):
        write_figures([profile], "run", tmp_path, ["svg"], 3.3)
    assert [path.name for path in tmp_path.iterdir()] == [CAPTIONS]


def test_a_full_disk_changes_no_file(profile: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_figures([profile], "run", tmp_path, ["svg"], 3.3)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    real, left = Path.write_bytes, [2]

    def write(path: Path, content: bytes) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return real(path, content)

    monkeypatch.setattr(Path, "write_bytes", write)
    with pytest.raises(UserError, match="no space left while writing"):
        write_figures([profile], "run", tmp_path, ["svg"], 5.0)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


DIVERGED = "the loss was nan"
"""What the record says of a training that diverged."""
DRAWN = {
    "profile": ["operator-types", "iteration-times", "time-by-input-size", "memory-by-input-size"],
    "watched": ["iteration-times"],
    "memory": ["memory-by-input-size", "memory-estimates"],
    "constructed models": ["iteration-times", "constructed-latency"],
    "training": [], "inference": [], "operations": [], "sparse": [], "bricks": [],
}  # fmt: skip
"""Figures of which each kind of run has data, where that is certain."""


@pytest.mark.parametrize("kind", RUNS)
def test_every_figure_of_every_kind_of_run_is_drawn_or_has_a_reason(kind: str, tmp_path: Path) -> None:
    run = load_run(hostile(RUNS[kind](tmp_path / "runs"), text=HOSTILE))
    files, missing = write_figures([run], "run", tmp_path / "out", ["svg"], 3.3)
    names = [name for name in FIGURES if f"run-{name}.svg" in files]
    assert sorted([*names, *missing]) == sorted(FIGURES)
    assert all(missing.values())
    assert names == DRAWN.get(kind, names)
    text = "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "out").iterdir()) if files else ""
    assert "<script>alert" not in text
    assert not re.search(r"\bnan\b", text.replace(DIVERGED, "") + "".join(missing.values()).replace(DIVERGED, ""))


@pytest.mark.parametrize("kind", ["profile", "memory", "constructed models", "watched"])
def test_a_run_that_lacks_a_table_has_reasons(kind: str, tmp_path: Path) -> None:
    path = RUNS[kind](tmp_path)
    for table in load_run(path).manifest["tables"]:
        records.drop_table(path, table)
    run = load_run(path)
    for figure in FIGURES.values():
        with pytest.raises(NoData, match=r"\w"):
            figure.draw([run], 3.3)


def test_a_run_without_cases_has_reasons(tmp_path: Path) -> None:
    run = load_run(RunWriter(tmp_path, "empty", {}).close("complete"))
    for figure in FIGURES.values():
        with pytest.raises(NoData, match=r"\w"):
            figure.draw([run], 3.3)


def test_several_runs_are_drawn_together(profile: Run, tmp_path: Path) -> None:
    other = load_run(records.write_record(tmp_path, sizes=(32,)))
    names = texts(drawn("operator-types", profile, other).axes[0].yaxis)
    assert names == ["32 px, train (1)", "32 px, infer (1)", "64 px, train", "64 px, infer", "128 px, train",
                     "128 px, infer", "224 px, train", "224 px, infer", "32 px, train (2)", "32 px, infer (2)"]


@pytest.mark.parametrize("names", [["a" * 99 + "x", "a" * 99 + "y"], ["one, " + "b" * 50, "two"], ["same", "same"]])
def test_names_are_short_and_unique(names: list[str]) -> None:
    found = unique(names)
    assert len(set(found)) == len(names)
    assert max(map(len, found)) <= LONGEST_NAME + len(" (2)")


def test_a_name_with_dollars_is_no_formula(tmp_path: Path) -> None:
    path = records.write_record(tmp_path / "runs", sizes=(32,))
    run = load_run(hostile(path, text="$\\frac{1}$"))
    files, _ = write_figures([run], "run", tmp_path / "out", ["svg", "pdf"], 3.3)
    assert len(files) > 2


