"""Another allocator of the CPU's memory."""

from pathlib import Path

import pytest
from support.remedied import chosen, program, refused

from charact.remedies.kinds import allocator
from charact.remedies.remedy import all_remedies


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two folders of libraries."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(allocator, "_FOLDERS", (str(tmp_path / "one*"), str(tmp_path / "two")))
    return tmp_path


def test_tcmalloc_comes_before_jemalloc(libraries: Path) -> None:
    assert "apt-get install" in refused("allocator", program())
    (libraries / "one" / "libjemalloc.so.2").touch()
    assert chosen("allocator", program())[0].values == {"library": str(libraries / "one" / "libjemalloc.so.2")}
    (libraries / "two" / "libtcmalloc.so.4").touch()
    assert chosen("allocator", program())[0].values == {"library": str(libraries / "two" / "libtcmalloc.so.4")}
    (libraries / "one" / "libtcmalloc_minimal.so.4.5").touch()
    (libraries / "one" / "libtcmalloc_minimal.so.4").touch()
    (setting,) = chosen("allocator", program())
    path = str(libraries / "one" / "libtcmalloc_minimal.so.4")
    assert (setting.values, setting.label) == ({"library": path}, "libtcmalloc_minimal")
    assert setting.expected_frac == 0.02
    assert all_remedies()["allocator"].environment(setting.values) == {"LD_PRELOAD": path}


def test_programs_that_keep_their_allocator(libraries: Path) -> None:
    (libraries / "one" / "libjemalloc.so.2").touch()
    assert "CPU" in refused("allocator", program(device="cuda:0"))
    assert "LD_PRELOAD" in refused("allocator", program(software={"environment": {"LD_PRELOAD": "x.so"}}))
