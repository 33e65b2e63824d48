"""The user's cache of corrections: what was learned is read as it was, and what is no such file is learned anew."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charact.bricks.analysis.construction import Correction
from charact.bricks.commands import _construct as cache
from charact.bricks.commands._construct import NotCorrected, correction_file, keep_correction, read_correction
from charact.core.errors import UserError

KEY = ("0123", "2.13.0+cpu", 2, "cpu", "infer", "fp32", 1, "chains", "contextual")
LEARNED = Correction(0.95, 6e-6, 0.0, 0.0, {"piece_s": "not determined"}, ["a", "b"], 0.05, 0.02, 0.04)

finite = st.floats(allow_nan=False, allow_infinity=False)
shares = st.floats(0, 10)
learned = st.builds(Correction, st.floats(0.01, 10), finite, finite, finite, st.dictionaries(st.text(), st.text()),
                    st.lists(st.text(), min_size=2), shares, shares, shares)  # fmt: skip


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    keep_correction(tmp_path / "kept.json", LEARNED)
    return tmp_path / "kept.json"


@given(correction=learned)
def test_what_was_kept_is_read_as_it_was(tmp_path_factory: pytest.TempPathFactory, correction: Correction) -> None:
    path = tmp_path_factory.mktemp("kept") / "below" / "one.json"
    keep_correction(path, correction)
    assert read_correction(path) == correction


def test_all_that_a_correction_depends_on_is_in_the_files_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert correction_file(KEY) == Path(
        "/c/charact/corrections/0123-2.13.0+cpu-2-cpu-infer-fp32-1-chains-contextual.json")
    changed = ("4567", "2.14.0", 1, "cuda:0", "train", "pure-bf16", 2, "heavy", "paper")
    others = [(*KEY[:place], value, *KEY[place + 1:]) for place, value in enumerate(changed)]
    files = {correction_file(KEY), *map(correction_file, others)}
    assert len(files) == 10
    assert all(path.parent == Path("/c/charact/corrections") for path in files)
    assert correction_file(("../..", *KEY[1:3], "/", *KEY[4:])).parent == Path("/c/charact/corrections")


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.raises(NotCorrected, match="no home directory for the cache: set XDG_CACHE_HOME"):
        correction_file(KEY)


@pytest.mark.parametrize(("text", "other"), [
    ('"format": 1', '"format": 2'), ('"charact"', '"chart"'), ("0.95", "-0.95"), ("0.95", "0"), ("0.95", "null"),
    ("0.95", "NaN"), ('"a"', "1"), ('"a",', ""), ("0.05", "-1"), ("{", "["), ("{", '{"more": 1,'),
])
def test_a_file_of_another_kind_is_not_taken(kept: Path, text: str, other: str) -> None:
    written = kept.read_text()
    assert text in written
    kept.write_text(written.replace(text, other, 1))
    with pytest.raises(NotCorrected, match="is damaged, or was written by another version of charact"):
        read_correction(kept)


@given(end=st.integers(0, 320))
def test_a_file_that_was_cut_is_not_taken(tmp_path_factory: pytest.TempPathFactory, end: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "one.json"
    keep_correction(path, LEARNED)
    written = path.read_bytes()
    path.write_bytes(written[:end])
    assert end < len(written.rstrip())
    with pytest.raises(NotCorrected, match="is damaged"):
        read_correction(path)


def test_what_another_version_learned_is_not_taken(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "version", lambda _: "9.9")
    with pytest.raises(NotCorrected, match=r"^it was learned by charact 0\..*: run charact bricks calibrate again$"):
        read_correction(kept)


def test_what_is_not_there_was_not_learned(tmp_path: Path) -> None:
    with pytest.raises(NotCorrected, match="no correction was learned on this machine: run charact bricks calibrate"):
        read_correction(tmp_path / "none.json")
    with pytest.raises(NotCorrected, match=r"cannot be read \(is a directory\)"):
        read_correction(tmp_path)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^cannot write .*row\.json \(not a directory\): choose another place$"):
        keep_correction(tmp_path / "file" / "below" / "row.json", LEARNED)
