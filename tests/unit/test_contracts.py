"""What every analysis and every view does with any run, also with one that lacks a table or has no cases."""

import importlib
import inspect
import json
import math
import pkgutil
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support import records
from support.hostile import hostile
from support.kinds_of_runs import RUNS
from support.pages import HOSTILE, Page
from support.terminal import shown

import charact.analysis
from charact.record.reader import Run, load_run
from charact.record.schema import TABLES
from charact.record.writer import RunWriter
from charact.views.export.run_summary import run_summary
from charact.views.export.summary_markdown import MAX_LINES, summary_markdown
from charact.views.html.report import report
from charact.views.tensorboard.scalars import scalars

REASONS = {
    "iterations": "n/a (the record has no data)", "operators": "n/a (the record has no data)",
    "memory": "n/a (the record has no data)", "flop": "n/a (the record has no data)",
    "stages": "the record has no data)", "bricks": "the record has no data", "brick_times": "the record has no times",
    "pieces": "the record has no data", "constructions": "the record has no", "problems": "the record has no r",
    "repetitions": "the record has no r", "cases": "This run has no cases",
}  # fmt: skip
"""What a report says in place of what it would draw from a table."""
DIVERGED = "the loss was nan"
"""What the record says of a training that diverged."""


def _analyses() -> Iterator[Any]:
    """Return every public function of `charact.analysis` that makes a table from a run and nothing else."""
    for module in pkgutil.walk_packages(charact.analysis.__path__, "charact.analysis."):
        for name, function in vars(importlib.import_module(module.name)).items():
            if not inspect.isfunction(inspect.unwrap(function)) or function.__module__ != module.name:
                continue
            signature = inspect.signature(function)
            required = [one for one in signature.parameters.values() if one.default is one.empty]
            is_table = signature.return_annotation is pd.DataFrame
            if is_table and len(required) == 1 and required[0].annotation is Run and not name.startswith("_"):
                yield pytest.param(function, id=f"{module.name.removeprefix('charact.analysis.')}.{name}")


class TablesRead(dict[Any, Any]):
    """Memoized results of a run that know which tables each was made from; a result may be made from others."""

    def __init__(self) -> None:
        super().__init__()
        self.made_from: dict[Any, set[str]] = {}
        self.read: list[set[str]] = [set()]

    def __contains__(self, key: object) -> bool:
        if super().__contains__(key):
            self.read[-1] |= self.made_from[key]
            return True
        self.read.append(set())
        return False

    def __setitem__(self, key: object, value: object) -> None:
        self.made_from[key] = self.read.pop()
        self.read[-1] |= self.made_from[key]
        super().__setitem__(key, value)


class WatchedRun(Run):
    """A run that knows which tables were read from it."""

    found: TablesRead

    def table(self, name: str) -> pd.DataFrame:
        self.found.read[-1].add(name)
        return super().table(name)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Return a run of each kind."""
    found = {kind: load_run(write(tmp_path_factory.mktemp("run"))) for kind, write in RUNS.items()}
    for run in found.values():
        run.__class__, run.found = WatchedRun, TablesRead()
    return found


@pytest.fixture(scope="module")
def damaged(runs: dict[str, Run], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Return a run without cases, and for each table a run that lacks it, by what it lacks."""
    out = tmp_path_factory.mktemp("damaged")
    found = {"cases": load_run(RunWriter(out, "empty", {}).close("complete"))}
    for kind, run in runs.items():
        for table in set(run.manifest["tables"]) - set(found):
            copy = shutil.copytree(run.path, out / f"{kind} without {table}")
            records.drop_table(copy, table)
            found[table] = load_run(copy)
    return found


@pytest.mark.parametrize("analysis", list(_analyses()))
def test_an_analysis_has_the_same_columns_for_every_run(analysis: Callable[[Run], pd.DataFrame],
                                                        runs: dict[str, Run], damaged: dict[str, Run]) -> None:
    empty = analysis(damaged["cases"])
    assert empty.empty
    assert len(empty.columns)
    read: set[str] = set()
    for name, run in runs.items():
        assert isinstance(run.found, TablesRead)
        run.found.read[-1].clear()
        assert list(analysis(run).columns) == list(empty.columns), name
        read |= run.found.read[-1]
    # A run that lacks what the analysis does not read is like the others.
    for table in read & set(damaged):
        assert list(analysis(damaged[table]).columns) == list(empty.columns), table


def _terminal(run: Run) -> str:
    return shown(run.path, width=300)


def _html(run: Run) -> str:
    """Words of the report, whose tags match and in which no text of the record is an element."""
    html = report([run])
    assert "<script>alert" not in html
    return Page(re.sub(r"<(script|style)\b.*?</\1>", "", html, flags=re.DOTALL)).words


def _tensorboard(run: Run) -> str:
    found = list(scalars(run))
    assert not any(math.isnan(scalar.value) for scalar in found)
    return " ".join(str(scalar.tag) for scalar in found)


def _json(run: Run) -> str:
    return json.dumps(run_summary(run), allow_nan=False, ensure_ascii=False)


def _markdown(run: Run) -> str:
    text = summary_markdown(run)
    assert len(text.split("\n")) <= MAX_LINES
    return text


RENDERERS = {"terminal": _terminal, "html": _html, "tensorboard": _tensorboard, "json": _json, "markdown": _markdown}
"""Texts of a run as each renderer shows it."""


@pytest.mark.slow_variants
@pytest.mark.parametrize("table", ["cases", *TABLES])
def test_a_view_of_a_run_without_a_table_shows_reasons_and_no_nan(table: str, damaged: dict[str, Run]) -> None:
    texts = {name: render(damaged[table]).replace(DIVERGED, "") for name, render in RENDERERS.items()}
    assert [name for name, text in texts.items() if re.search(r"\bnan\b", text)] == []
    assert REASONS.get(table, "") in texts["html"]


QUICK = {"profile", "watched", "bricks"}


@pytest.mark.without_figures
@pytest.mark.parametrize("kind", [
    pytest.param(kind, marks=[] if kind in QUICK else pytest.mark.slow) for kind in RUNS])
def test_every_renderer_takes_names_for_text(kind: str, tmp_path: Path) -> None:
    run = load_run(hostile(RUNS[kind](tmp_path), text=HOSTILE))
    texts = {name: render(run) for name, render in RENDERERS.items()}
    assert [name for name, text in texts.items() if text and "alert(" not in text] == []
    assert "<script>" not in texts["markdown"]
    assert [case["case"] for case in json.loads(texts["json"])["cases"]] == list(run.cases["case"])
