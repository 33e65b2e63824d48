"""Scripts that mark the phases of their iterations, alone and under `charact run`, and their times in the record."""

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from charact import load_run
from charact.record.reader import Run
from support.forked import Server

SCRIPTS = Path(__file__).parents[1] / "scripts"
TOLERANCE_S, TOLERANCE_FRAC = 0.002, 0.03
Outcome = tuple[int, str, str]
Parts = dict[tuple[str, str | None], float]


def forked_bare_and_watched(server: Server, tmp_path: Path, script: str, *arguments: str, draws_views: bool = True
                            ) -> tuple[Outcome, Outcome]:
    """Outcomes of a script, alone and under charact; both run at once, each in a directory of its own."""
    program = [str(SCRIPTS / f"{script}.py"), *arguments]
    watching = ["run", "--skip", "0", "--passes", "timing", "--out", str(tmp_path / "runs")]
    commands = {"bare": program, "watched": [*watching, *program]}
    truths = {"bare": "../unread.json", "watched": str(tmp_path / "truth.json")}
    for name in commands:
        (tmp_path / name).mkdir()
    children = [server.start(*command, cwd=tmp_path / name, draws_views=draws_views, TRUTH=truths[name])
                for name, command in commands.items()]
    alone, watched = (child.wait()[:3] for child in children)
    return alone, watched


def only_run(tmp_path: Path) -> Run:
    (path,) = (tmp_path / "runs").iterdir()
    return load_run(path)


def true_iterations(tmp_path: Path, mode: str) -> list[dict[str, Any]]:
    return [one for one in json.loads((tmp_path / "truth.json").read_text()) if one["mode"] == mode]


def true_parts_s(iterations: list[dict[str, Any]]) -> list[Parts]:
    """Seconds of each phase and part, by iteration."""
    sums: list[Parts] = []
    for iteration in iterations:
        sums.append(defaultdict(float))
        for one in iteration["parts"]:
            sums[-1][one["phase"], one["part"]] += one["seconds"]
    return sums


def recorded_parts_s(run: Run, case: str) -> list[Parts]:
    rows = run.iterations[run.iterations["case"] == case]
    sums: list[Parts] = [defaultdict(float) for _ in range(rows["iteration"].nunique())]
    for row in rows.to_dict("records"):
        part = row["part"] if isinstance(row["part"], str) else None
        for addition in ("for ", "'s update", " without gradients"):  # scripts mark only the model
            part = part and part.removeprefix(addition).removesuffix(addition)
        sums[row["iteration"]][row["phase"], part] += row["host_s"]
    return sums


def without_parts(parts: Parts) -> Parts:
    phases: Parts = defaultdict(float)
    for (phase, _), seconds in parts.items():
        phases[phase, None] += seconds
    return phases


def mostly_alike(recorded_s: Sequence[float], true_s: Sequence[float], tolerance_s: float) -> bool:
    """Whether 2 of 3 iterations agree, or 3 of 5: in some, another program takes the core between the clocks.

    Charact starts to count the use of the cores in the first one, which takes up to 6 ms.
    """
    far = sum(abs(found - true) > tolerance_s for found, true in zip(recorded_s, true_s, strict=True))
    return far <= (math.ceil(len(true_s) / 3) if len(true_s) > 2 else 0)


def slow(*values: Any) -> Any:
    """Parameters of a test that is left out by default: others show nearly the same."""
    return pytest.param(*values, marks=pytest.mark.slow)
