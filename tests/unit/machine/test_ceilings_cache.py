"""The user's cache of ceilings: what was written is read as it was, and what is no such file is measured anew."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.ceilings import ceiling, made_up

from charact.core.errors import UserError
from charact.machine import ceilings_cache as cache
from charact.machine.ceilings_cache import (
    CachedCeilings,
    NotCached,
    cache_ceilings,
    ceilings_file,
    is_disturbed,
    raise_ceilings,
    read_cached,
)

positive = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False)
rows = st.builds(
    lambda name, value, precision, level, source, **others: ceiling(
        name, value, "s", precision=precision, level=level, datasheet_source=source, **others),
    st.sampled_from(["gemm", "copy", "triad", "launch", "host_to_device", "device_to_host"]), positive,
    st.sampled_from([None, "fp32", "tf32", "bf16", "fp16"]), st.sampled_from([None, "L2", "memory"]),
    st.none() | st.text(), low=positive, high=positive, datasheet=st.none() | positive,
    working_set_bytes=st.none() | st.integers(0, 2**50), cores_frac=st.none() | positive)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@given(found=st.lists(rows, min_size=1, max_size=5))
def test_what_was_kept_is_read_as_it_was(folder: Path, found: list[cache.Ceiling]) -> None:
    kept = CachedCeilings(found, 1e9)
    cache_ceilings(folder / "a" / "row.json", kept)
    assert read_cached(folder / "a" / "row.json", CachedCeilings) == kept
    assert kept.ceilings == found


def test_all_that_ceilings_depend_on_is_in_the_files_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    one = ceilings_file("0123", "2.13.0+cpu", 2, "cpu")
    assert one == Path("/c/charact/ceilings/0123-torch2.13.0+cpu-2threads-cpu.json")
    others = [("4567", "2.13.0+cpu", 2, "cpu"), ("0123", "2.14.0", 2, "cpu"), ("0123", "2.13.0+cpu", 3, "cpu"),
              ("0123", "2.13.0+cpu", 2, "cuda:0"), ("0123", "2.13.0+cpu", 2, "cuda:1")]
    files = {one, *(ceilings_file(*other) for other in others)}
    assert len(files) == 6
    assert all(path.parent == one.parent and ":" not in path.name for path in files)
    assert ceilings_file("../..", "/", 1, "..").parent == one.parent


@pytest.mark.parametrize("folder", [None, "", "relative/cache"])
def test_without_a_whole_path_the_cache_is_below_home(monkeypatch: pytest.MonkeyPatch, folder: str | None) -> None:
    if folder is None:
        monkeypatch.delenv("XDG_CACHE_HOME")
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", folder)
    monkeypatch.setenv("HOME", "/home/someone")
    assert ceilings_file("f", "2", 1, "cpu").parent == Path("/home/someone/.cache/charact/ceilings")


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.raises(NotCached, match="no home directory for the cache: set XDG_CACHE_HOME"):
        ceilings_file("f", "2", 1, "cpu")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    cache_ceilings(tmp_path / "kept.json", CachedCeilings(made_up()))
    return tmp_path / "kept.json"


@pytest.mark.parametrize(("text", "other"), [
    ('"format": 1', '"format": 2'), ('"format": 1', '"format": "1"'), ('"charact"', '"chart"'), ("1e13", "-1.0"),
    ("1e13", "0"), ("1e13", "NaN"), ("1e13", "1e999"), ("1e13", "null"), ("1e13", '"1e13"'), ('"gemm"', '"gems"'),
    ('"fp32"', '"fp7"'), ('"unit"', '"units"'), ('"flop_per_s"', '"GFLOP/s"'), ("{", "["), ("{", '{"more": 1,'),
])
def test_a_file_of_another_kind_is_not_taken(kept: Path, text: str, other: str) -> None:
    written = kept.read_text().replace("10000000000000.0", "1e13")
    assert text in written
    kept.write_text(written.replace(text, other, 1))
    with pytest.raises(NotCached, match="is damaged, or of another version of charact"):
        read_cached(kept, CachedCeilings)


@given(end=st.integers(0, 2000), tail=st.binary(max_size=40))
def test_a_file_that_was_cut_or_overwritten_is_not_taken(folder: Path, end: int, tail: bytes) -> None:
    path = folder / "cut.json"
    whole = CachedCeilings(made_up())
    cache_ceilings(path, whole)
    written = path.read_bytes()
    path.write_bytes(written[:end] + tail)
    try:
        taken, why = read_cached(path, CachedCeilings), None
    except NotCached as reason:
        taken, why = None, str(reason)
    # Where what was cut off stands there again, or was white space, it is the whole file.
    assert taken == whole or (why is not None and "is damaged" in why)


def test_what_cannot_be_used_has_a_reason(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def why(path: Path) -> str:
        with pytest.raises(NotCached) as reason:
            read_cached(path, CachedCeilings)
        return str(reason.value)

    assert why(kept.with_name("none.json")) == "they were not measured yet"
    assert "cannot be read (is a directory)" in why(kept.parent)
    with monkeypatch.context() as patch:
        patch.setattr(cache, "version", lambda _: "9.9")
        assert why(kept).startswith("they were measured by charact 0.")
    cache_ceilings(kept, CachedCeilings([]))
    assert "is damaged" in why(kept)
    kept.write_text('{"more": ' + "[" * 200_000)
    assert "is damaged" in why(kept)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^cannot write .*row\.json \(not a directory\): choose another place$"):
        cache_ceilings(tmp_path / "file" / "charact" / "row.json", CachedCeilings(made_up()))


def test_a_full_disk_leaves_what_was_there(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = kept.read_bytes()
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UserError, match="no space left while writing"):
        cache_ceilings(kept, CachedCeilings(made_up("cuda:0")))
    assert kept.read_bytes() == before
    assert [path.name for path in kept.parent.iterdir()] == ["kept.json"]


def test_of_writers_at_once_one_wins_whole(tmp_path: Path) -> None:
    path = tmp_path / "row.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: cache_ceilings(path, CachedCeilings(made_up(f"cuda:{number}"))), range(40)))
    assert len({row["device"] for row in read_cached(path, CachedCeilings).ceilings}) == 1
    assert [one.name for one in tmp_path.iterdir()] == ["row.json"]


@pytest.mark.parametrize(("cores_frac", "disturbed"), [(1.0, False), (0.8, False), (0.79, True), (None, False)])
def test_a_process_that_had_less_than_its_cores_was_disturbed(cores_frac: float | None, disturbed: bool) -> None:
    products = ceiling("gemm", 1e12, "flop_per_s", precision="fp32", cores_frac=cores_frac)
    assert is_disturbed([ceiling("launch", 1e-6, "s"), products]) is disturbed


def test_a_rate_that_a_workload_reached_replaces_a_lower_ceiling_of_its_precision() -> None:
    kept = CachedCeilings(made_up(), 1e9)
    raised = raise_ceilings(kept, {"fp32": (1.5e13, "convolution in vgg"), "bf16": (1e13, "GEMM in mlp")})
    (fp32, bf16), others = raised.ceilings[:2], raised.ceilings[2:]
    assert (fp32["value"], fp32["origin"]) == (1.5e13, "convolution in vgg")
    assert [bf16, *others] == kept.ceilings[1:]
    assert (raised.measured, raised.check_flop_per_s) == (kept.measured, 1e9)


def test_ceilings_of_several_devices_and_reasons_for_missing_ones(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    on_cpu, on_gpu = ceiling("gemm", 5.0, "s"), ceiling("copy", 7.0, "s")
    cache_ceilings(ceilings_file("f", "2", 4, "cpu"), CachedCeilings([on_cpu]))
    cache_ceilings(ceilings_file("f", "2", 4, "cuda:0"), CachedCeilings([on_gpu]))
    assert cache.distinct_devices(["cuda", "cpu", "cuda:0", "cuda:1", "cpu"]) == ["cuda:0", "cpu", "cuda:1"]
    assert cache.cached_ceilings("f", "2", 4, ["cuda", "cpu", "cuda:0"]) == {
        "ceilings": [on_gpu, on_cpu], "ceilings_reason": None}
    missing = "they were not measured yet; charact doctor --ceilings"
    assert cache.cached_ceilings("f", "2", 4, ["cuda:1", "cpu", "cuda:2"]) == {
        "ceilings": [on_cpu], "ceilings_reason": f"ceilings of cuda:1: {missing} measures them; "
                                                 f"ceilings of cuda:2: {missing} measures them"}

    def bandwidth(operation: Any, num_bytes: int, rate: float) -> cache.CollectiveBandwidth:
        return {"operation": operation, "bytes": num_bytes, "time_s": 1.0, "bus_bytes_per_s": rate, "low": rate,
                "high": rate}

    rows = [bandwidth("all_reduce", 1, 2.0), bandwidth("broadcast", 1, 9.0), bandwidth("all_reduce", 2, 3.0),
            bandwidth("all_reduce", 3, 3.0), bandwidth("broadcast", 2, 8.0)]
    collectives = cache.CachedCollectives(backend="gloo", num_ranks=2, rows=rows, unavailable={})
    assert collectives.best == [rows[2], rows[1]]
    cache_ceilings(cache.collectives_file("f", "2", 2, "gloo"), collectives)
    assert cache.best_collectives("f", "2", [(2, "gloo"), (4, "gloo")]) == {
        "collective_ceilings": [{"backend": "gloo", "num_ranks": 2, **row} for row in (rows[2], rows[1])],
        "collective_ceilings_reason": f"collectives of 4 ranks (gloo): {missing} --nproc 4 measures them"}
    assert cache.best_collectives("f", "2", [(2, "gloo")])["collective_ceilings_reason"] is None
    assert CachedCeilings([on_cpu], measured="2026-11-21T10:30:59+0000").when == "2026-11-21 10:30"
