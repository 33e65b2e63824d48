"""All that charact shows of a record of every kind, as files: what a change of the code should leave as it is.

    python -m support.goldens before; git switch my-change; python -m support.goldens after; diff -r before after

Run it in `tests/`. Figures are left out, and names of runs, which hold the time, are `RUN`.
"""

import contextlib
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from charact import cli
from charact.record.reader import load_run
from charact.record.schema import TABLES
from charact.views.export.summary_markdown import summary_markdown
from charact.views.html.report import report
from charact.views.tensorboard.scalars import scalars
from support import plain_figures
from support.kinds_of_runs import RUNS

_RUN = re.compile(r"\d{8}-\d{6}-[\w.-]*?[0-9a-f]{6}\b")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?([+-]\d\d:\d\d|Z)?")
COMPARED = [("profile", "profile"), ("training", "training"), ("operations", "operations"), ("bricks", "bricks"),
            ("constructed models", "constructed models"), ("memory", "memory"), ("watched", "slow program")]
"""Kinds of runs that are compared: baseline and candidate."""


def commands(*arguments: str) -> str:
    """Return what a command prints, with its status."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status: object = cli.run(list(arguments))
        except SystemExit as ended:
            status = ended.code
    return f"{out.getvalue()}\n{err.getvalue()}\nstatus {status}\n"


def of_run(path: Path) -> Iterator[tuple[str, str]]:
    """Yield what is shown of a run: names of files and their texts."""
    run = load_run(path)
    for table in TABLES:
        if len(rows := run.table(table)):
            yield f"{table}.csv", rows.to_csv(index=False)
    yield "run.json", json.dumps(run.manifest, indent=1)
    yield "summary.csv", run.summary().to_csv(index=False)
    yield "summary.md", summary_markdown(run)
    yield "report.html", report([run])
    yield "scalars.txt", "\n".join(map(str, scalars(run)))
    yield "show.txt", commands("show", str(path))
    yield "show.json", commands("show", "--json", str(path))


def of_comparison(base: Path, new: Path) -> Iterator[tuple[str, str]]:
    """Yield what is shown of a comparison."""
    sides = [f"before={base}", f"after={new}"]
    yield "compare.txt", commands("compare", *sides)
    for ending in ("md", "csv", "html"):
        to = new.parent / f"comparison.{ending}"
        yield f"{ending}.txt", commands("compare", *sides, "--to", str(to), "--force")
        if to.is_file():
            yield f"compare.{ending}", to.read_text(encoding="utf-8")
    for metric in ("time > 1.05", "throughput < 0.95", "peak_memory > 1.01"):
        yield f"gate {metric.split()[0]}.txt", commands("compare", *sides, "--fail-if", metric)


def write_all(out: Path) -> int:
    """Write the files of all runs, comparisons and the history; return their number."""
    number = 0
    with TemporaryDirectory() as temporary:
        paths = {kind: write(Path(temporary) / kind) for kind, write in RUNS.items()}
        parts = {kind: of_run(path) for kind, path in paths.items()}
        for base, new in COMPARED:
            second = RUNS[new](Path(temporary) / "second" / new)
            parts[f"{new} against {base}"] = of_comparison(paths[base], second)
        case = load_run(paths["profile"]).cases["case"].iloc[0]
        history = [str(paths["profile"]), "--case", case, "--metric"]
        parts["history"] = ((f"{metric}.txt", commands("history", *history, metric))
                            for metric in ("time", "throughput", "peak_memory", "energy", "accuracy"))
        for name, files in parts.items():
            (out / name).mkdir(parents=True, exist_ok=True)
            for file, text in files:
                for place in (temporary, temporary.replace("_", "\\_")):  # as it is, and in Markdown
                    text = text.replace(place, "DIR")
                text = _TIME.sub("TIME", _RUN.sub("RUN", text))
                (out / name / file).write_text(text, encoding="utf-8")
                number += 1
    return number


def main() -> None:
    """Write all below the given directory."""
    out = Path(sys.argv[1])
    with pytest.MonkeyPatch.context() as patch:
        plain_figures.leave_texts(patch)
        print(f"{write_all(out)} files in {out}")


if __name__ == "__main__":
    main()
