"""Cases of a sweep that run here, each in a process of its own."""

from pathlib import Path
from typing import Any

import pytest

from charact.sweeps import local
from charact.sweeps.definition import Definition, SweepCase
from charact.sweeps.directory import Outcome, SweepDirectory

CASE = SweepCase("infer", (), 1)


@pytest.mark.parametrize(("wrote", "state"), [(True, "ok"), (False, "killed")])
def test_a_case_that_is_killed_after_its_end_stays_done(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrote: bool, state: str) -> None:
    directory = SweepDirectory(tmp_path / "out")
    directory.create(Definition("one", (CASE,)))

    class Killed:
        """A process that SIGKILL ends, after or before it writes its outcome."""

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def wait(self) -> int:
            if wrote:
                directory.write(CASE, Outcome("ok", 0, "", "run", 1.0, "here", "now", 1))
            return -9

    monkeypatch.setattr(local.subprocess, "Popen", Killed)
    local.run_cases(directory, [CASE], lambda case: None, lambda case: None)
    found = directory.outcome(CASE)
    assert found is not None
    assert found.state == state
