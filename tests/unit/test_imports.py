"""The data path runs one way: workload -> measure -> record -> analysis -> views, and only commands see both sides."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What belongs to which part, by the module's name below `charact`; a package's part is that of all it holds.
PARTS = {
    "api": ["__init__"],
    "python": ["profiler", "memory", "integrations"],
    "base": ["archives", "bounded", "ceilings", "checksums", "corrections", "datasheets", "errors", "files",
             "mark_names", "operator_types", "partial", "pickles", "plugins", "protocols", "quantities", "redaction",
             "schema", "stats", "text", "output", "console"],
    "workload": ["workload", "data", "metrics", "own", "workloads"],
    "measure": ["measure", "ops", "hardware", "cgroups"],
    "bricks": ["bricks"],
    "record": ["manifest", "presentable", "store", "table_checks", "writer", "partial", "references"],
    "traces": ["traces"],
    "analysis": ["analysis"],
    "views": ["views"],
    "commands": ["commands"],
    "cli": ["cli", "__main__"],
}
MAY_IMPORT = {
    "api": {"api", "base", "workload", "measure", "record", "python"},
    "python": {"base", "workload", "measure", "record", "analysis", "views", "python"},
    "base": {"base"},
    "workload": {"base", "workload"},
    "measure": {"api", "base", "workload", "measure", "bricks", "record", "traces"},
    "bricks": {"base", "workload", "measure", "bricks"},
    "record": {"base", "record"},
    "traces": {"base", "traces"},
    "analysis": {"base", "bricks", "record", "analysis"},
    "views": {"api", "base", "bricks", "record", "analysis", "views"},
    "commands": {"api", "base", "workload", "measure", "bricks", "record", "traces", "analysis", "views",
                 "commands"},
    "cli": {"api", "base", "cli", "commands"},
}
MAY_IMPORT_TORCH = {"workload", "measure", "bricks", "commands", "api", "python"}
IMPORTED_LATE = ("_running", "_publishing", "_partial", "_watching", "_memory_target", "_ceilings", "_bricks_auto",
                 "_bricks_calibrate", "_bricks_compositions", "_bricks_construct", "_bricks_generate", "_bricks_models",
                 "_bricks_run", "_bricks_suites", "_bricks_verify")
"""Modules that a command imports inside its function, once it knows that it will run or read something."""
HEAVY = {"torch", "numpy", "pandas", "pyarrow", "seaborn", "matplotlib", "tensorboard", "rich", "psutil", "jinja2"}


def part_of(module: str) -> str:
    top = module.removeprefix("charact").lstrip(".").partition(".")[0] or "__init__"
    parts = [part for part, tops in PARTS.items() if top in tops]
    assert parts, f"{module} belongs to no part: say in PARTS which"
    return parts[0]


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[str, int]]:
    """Modules that a file names in its imports, at any depth, with their lines."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package.split(".")[: len(package.split(".")) - node.level + 1], base]).rstrip(".")
            # `from charact import store` names a module, `from charact import __version__` the package.
            yield from ((f"charact.{alias.name}" if base == "charact" and is_module(alias.name) else base, node.lineno)
                        for alias in node.names)


def is_module(name: str) -> bool:
    return any(name in tops for tops in PARTS.values()) and name != "__init__"


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    part, tree = part_of(module), ast.parse(source)
    found = []
    for name, line in imports(tree, module, is_package):
        top = name.partition(".")[0]
        if top == "charact" and part_of(name) not in MAY_IMPORT[part]:
            found.append(f"{module}:{line} ({part}) imports {name} ({part_of(name)})")
        if top == "torch" and part not in MAY_IMPORT_TORCH:
            found.append(f"{module}:{line} ({part}) imports torch")
    if part in ("commands", "cli") and module.rpartition(".")[2] not in IMPORTED_LATE:
        checked = [node for node in tree.body if not is_type_checking(node)]
        for name, line in imports(ast.Module(body=without_functions(checked), type_ignores=[]), module, is_package):
            if name.partition(".")[0] in HEAVY:
                found.append(f"{module}:{line} imports {name} when the command line starts")
    return found


def is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def without_functions(body: list[ast.stmt]) -> list[ast.stmt]:
    return [node for node in body if not isinstance(node, (ast.FunctionDef, ast.ClassDef))]


def sources() -> dict[str, Path]:
    found = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in (ROOT / "charact").rglob("*.py")}
    return found | {f"charact.workloads.{path.stem}": path for path in (ROOT / "workloads").glob("*.py")}


@pytest.mark.parametrize("module", sorted(sources()))
def test_no_arrow_runs_back(module: str) -> None:
    path = sources()[module]
    is_package = path.name == "__init__.py"
    name = module.removesuffix(".__init__") if is_package else module
    assert violations(path.read_text(encoding="utf-8"), name, is_package=is_package) == []


def test_what_analyses_and_views_take_from_bricks_is_free_of_torch() -> None:
    """Some of `charact.bricks` imports torch: who imports from it shows only when it is run."""
    users = [name for name, path in sources().items() if part_of(name) in ("analysis", "views")
             and "from charact.bricks" in path.read_text(encoding="utf-8")]  # fmt: skip
    assert users
    program = f"import sys, {', '.join(users)}\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(("module", "source"), [
    ("charact.analysis.breakdown", "import torch"),
    ("charact.analysis.breakdown", "from charact.measure.timing import time_case"),
    ("charact.analysis.breakdown", "from charact import measure"),
    ("charact.analysis.breakdown", "from ..measure import timing"),
    ("charact.analysis.breakdown", "from charact.views.format import seconds"),
    ("charact.analysis.breakdown", "def f():\n    import torch.nn"),
    ("charact.analysis.breakdown", "from charact.hardware import machine_facts"),
    ("charact.views.terminal", "from torch import nn"),
    ("charact.views.terminal", "import charact.measure.timing"),
    ("charact.views.tensorboard.plugin", "from charact.commands.report import command"),
    ("charact.measure.timing", "from charact.analysis import breakdown"),
    ("charact.measure.counters.host", "from charact.views import format"),
    ("charact.store", "import torch"),
    ("charact.store", "from charact.bricks.composition import Composition"),
    ("charact.bricks.brick", "from charact.store import load_run"),
    ("charact.bricks.suite", "from charact.analysis.bricks import statistics"),
    ("charact.store", "from charact.analysis import breakdown"),
    ("charact.schema", "from charact.store import load_run"),
    ("charact.workload", "from charact.measure import timing"),
    ("charact.workloads.resnet", "from charact.store import load_run"),
    ("charact.metrics", "from charact.measure.loop import Step"),
    ("charact.analysis.breakdown", "from charact.metrics import Accuracy"),
    ("charact.hardware", "from charact.commands import doctor"),
    ("charact.commands.list", "import torch"),
    ("charact.commands.list", "from charact.cli import main"),
    ("charact.commands.list", "try:\n    from rich.table import Table\nexcept ImportError:\n    pass"),
    ("charact.traces.phases", "import torch"),
    ("charact.traces.phases", "from charact.analysis import breakdown"),
    ("charact.traces.phases", "from charact.measure.timing import time_case"),
    ("charact.operator_types", "from charact.traces.events import Operator"),
    ("charact.cli", "from charact.measure import timing"),
    ("charact.cli", "import pandas as pd"),
])
def test_a_planted_arrow_is_found(module: str, source: str) -> None:
    assert len(violations(source, module)) == 1


@pytest.mark.parametrize(("module", "source"), [
    ("charact.analysis.breakdown", "from charact.store import Run\nfrom charact import schema\nimport pandas"),
    ("charact.views.terminal", "from charact.analysis.breakdown import phase_breakdown"),
    ("charact.measure.timing", "import torch\nfrom charact.writer import RunWriter"),
    ("charact.measure.operators", "from charact.traces.device import union\nfrom charact.mark_names import phase_at"),
    ("charact.measure.inference", "from charact.metrics import Metric"),
    ("charact.measure.brick_timing", "from charact.bricks.brick import Brick"),
    ("charact.analysis.bricks.construction", "from charact.bricks.composition import Composition"),
    ("charact.workload", "if TYPE_CHECKING:\n    from charact.metrics import Metric"),
    ("charact.commands.list", "def command():\n    import torch\n    from charact.views import terminal"),
    ("charact.commands.list", "if TYPE_CHECKING:\n    import torch"),
])
def test_an_arrow_that_runs_on_is_none(module: str, source: str) -> None:
    assert violations(source, module) == []


def test_a_file_of_no_part_is_refused() -> None:
    with pytest.raises(AssertionError, match="belongs to no part"):
        violations("", "charact.surprise")
