"""`charact figures`: what it writes, what it reports as missing, and wrong options."""

import sys
from pathlib import Path

import pytest
from support import records

from charact import cli
from charact.record.writer import RunWriter


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return records.write_record(tmp_path_factory.mktemp("runs"), sizes=(32,))


def test_figures_are_written_and_missing_ones_have_a_line(
        run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["figures", str(run), "--to", str(tmp_path / "a/b"), "--format", "svg,pdf", "--width", "84mm"]) == 0
    written = capsys.readouterr()
    assert written.out.splitlines() == [f"Wrote {tmp_path / 'a/b'}/{name}" for name in (
        f"{run.name}-operator-types.svg", f"{run.name}-operator-types.pdf",
        f"{run.name}-iteration-times.svg", f"{run.name}-iteration-times.pdf", "captions.md")]
    assert written.err.splitlines()[0] == (
        "not drawn: time-by-input-size: no two cases differ in the input size only: measure three with --input-sizes")
    assert len(written.err.splitlines()) == 5


def test_the_runs_of_a_study_are_drawn_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        records.write_record(tmp_path / "deep500-quick" / name, sizes=(32,))
    assert cli.run(["figures", str(tmp_path / "deep500-quick"), "--to", str(tmp_path), "--format", "svg"]) == 0
    text = (tmp_path / "deep500-quick-operator-types.svg").read_text(encoding="utf-8")
    assert all(f">{name}<" in text for name in ("train (1)", "infer (1)", "train (2)", "infer (2)"))


@pytest.mark.parametrize(("options", "message"), [
    (["--format", "eps"], "--format: 'eps' is not one of pdf, svg, png"),
    (["--format", ""], "--format"),
    (["--width", "0in"], "--width 0in is not possible: give 2in to 20in"),
    (["--width", "1e9cm"], "--width 1e9cm is not possible"),
    (["--width", "nanin"], "--width nanin is not possible"),
    (["--width", "3.3"], "--width '3.3' is no width"),
    (["--width", "wide"], "--width 'wide' is no width"),
    (["--width", "3.3px"], "--width '3.3px' is no width"),
])
def test_a_wrong_option_is_one_line(run: Path, tmp_path: Path, options: list[str], message: str,
                                    capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["figures", str(run), "--to", str(tmp_path / "out"), *options]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")
    assert not (tmp_path / "out").exists()


def test_a_directory_that_is_a_file_is_one_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").write_text("")
    for to in ("out", "out/below"):
        assert cli.run(["figures", str(run), "--to", str(tmp_path / to), "--format", "svg"]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("error: ")
        assert "directory" in error


def test_a_place_without_runs_or_cases_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study").mkdir()
    empty = RunWriter(tmp_path, "empty", {}).close("complete")
    for place, message in ((tmp_path / "study", "has no finished run"), (empty, "has no cases"),
                           (tmp_path / "nothing", "does not exist")):
        assert cli.run(["figures", str(place), "--to", str(tmp_path / "out")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert message in line


def test_a_run_without_any_figure_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = records.write_inference(tmp_path)
    assert cli.run(["figures", str(path), "--to", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("has the data of no figure: see the reasons above")
    assert not (tmp_path / "out").exists()


def test_without_seaborn_one_line_names_the_command(run: Path, monkeypatch: pytest.MonkeyPatch,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "seaborn", None)
    assert cli.run(["figures", str(run)]) == 2
    assert capsys.readouterr().err == "error: figures need seaborn: pip install 'charact[figures]'\n"
