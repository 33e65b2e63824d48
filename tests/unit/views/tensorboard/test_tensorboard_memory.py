"""Memory runs in TensorBoard: scalars by size, and peaks of several runs side by side."""

from pathlib import Path

import pytest
from support import memory_records as made
from support.event_files import read

from charact.record.reader import Run, load_run
from charact.views.html.report import sections, unbroken
from charact.views.tensorboard.records import Records, comparison
from charact.views.tensorboard.scalars import write_scalars

SERIES = "resnet18-imagenet-b8-train-fp32-cpu"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return load_run(made.write_memory(tmp_path / "runs", kinds=("image",)))


@pytest.mark.slow
def test_peaks_by_size_measured_and_predicted(run: Run) -> None:
    write_scalars(run, run.path)
    found = read(run.path)
    assert sorted(found) == sorted(
        f"{name}/{SERIES.replace('train', mode)}"
        for name in ("peak_memory_bytes", "predicted_peak_memory_bytes") for mode in ("train", "infer")
    )  # fmt: skip
    assert found[f"peak_memory_bytes/{SERIES}"] == [
        (size, pytest.approx(sum(made.composition("image", "train", size).values())))
        for size in made.MEASURED["image"]
    ]
    assert found[f"predicted_peak_memory_bytes/{SERIES}"] == [
        (size, pytest.approx(sum(made.predicted_parts("image", "train", size).values())))
        for size in made.SIZES["image"]
    ]


@pytest.mark.slow
def test_the_tab_shows_the_sections_of_the_report(run: Run) -> None:
    answer = Records(str(run.path.parent)).sections(run.path.name)
    assert [(part["id"], part["html"]) for part in answer] == [(part.id, unbroken(part.html)) for part in sections(run)]
    assert [part["id"] for part in answer] == ["summary", "memory", "machine", "method"]


@pytest.mark.slow
def test_runs_are_compared_by_their_peaks(run: Run) -> None:
    rows = run.memory
    twice = Run(run.path, run.manifest, _tables={"memory": rows.assign(bytes=2 * rows["bytes"])})
    html = comparison([run, twice])[0]["html"]
    group = html[html.index('data-case="resnet18-256-b8-train-fp32-cpu"') :].split("</tr>")[0]
    for words in ("433 MiB", "866 MiB", "2.000", "higher"):
        assert words in group
    assert "no case in common" not in html


def test_a_profile_and_a_memory_run_of_a_case_are_not_compared(run: Run, record: Path) -> None:
    assert "no case in common" in comparison([run, load_run(record)])[0]["html"]
