"""Imports run one way between layers, no two files import each other, and no folder is crowded.

The layer of a file is the first folder below `charact/`. Every import counts, also one inside a function; imports for
type checking alone do not. A feature in a folder of its own (`FEATURES`) uses all layers, and none uses it: it is found
by scanning, through folders that have the path of a layer's folder, such as `bricks/views/sections/`.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "charact"

MAY_IMPORT = {
    "core": set(),
    "record": {"core"},
    "machine": {"core", "record"},
    "datasets": {"core"},
    "workload": {"core", "datasets"},
    "workloads": {"core", "datasets", "workload"},
    "execution": {"core", "record", "machine", "datasets", "workload"},
    "ops": {"core", "datasets", "execution"},
    "traces": {"core", "record"},
    "measure": {"core", "record", "machine", "datasets", "workload", "execution", "ops", "traces"},
    "analysis": {"core", "record", "machine", "traces"},
    "views": {"core", "record", "analysis"},
    "sweeps": {"core", "record"},
    "commands": {"core", "record", "machine", "datasets", "workload", "execution", "ops", "traces",
                 "measure", "analysis", "views", "sweeps"},
}  # fmt: skip
"""Layers that each layer may import besides itself. The files at the top may import all of them."""
FEATURES: dict[str, set[str]] = {"bricks": {"studies"}, "remedies": set(), "studies": set()}
"""Features in a folder of their own, with other features that each may import: bricks has a chapter of the studies."""
FREE_OF_TORCH = {"core", "record", "traces", "analysis", "views", "sweeps", "bricks.suite", "bricks.analysis",
                 "bricks.views", "bricks.studies", "studies"}
"""Layers, and folders of features, whose files import no torch, also not by way of others."""
LARGEST_FOLDER = 20
HEAVY = {"torch", "numpy", "pandas", "pyarrow", "matplotlib", "tensorboard", "rich", "psutil", "jinja2", "seaborn"}


def sources() -> dict[str, Path]:
    """Files by module name."""
    paths = [*PACKAGE.rglob("*.py"), *(ROOT / "workloads").rglob("*.py")]
    names = [("charact." if path.is_relative_to(ROOT / "workloads") else "")
             + ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    return dict(zip(names, paths, strict=True))


SOURCES = sources()


def layer(module: str) -> str:
    """The first folder below `charact`; "" for a file at the top, which stands above all layers."""
    name = module.removeprefix("charact").lstrip(".").partition(".")[0]
    return name if name in MAY_IMPORT or name in FEATURES else ""


def may_import(own: str, other: str) -> bool:
    """Whether files of a layer or feature may import those of another."""
    if own in FEATURES:
        return other in MAY_IMPORT or other in FEATURES[own] | {own}
    return other not in FEATURES and (not own or other in MAY_IMPORT[own] | {own})


def free_of_torch(module: str) -> bool:
    """Whether a file may not import torch, also not by way of others."""
    first, _, inner = module.removeprefix("charact.").partition(".")
    return first in FREE_OF_TORCH or f"{first}.{inner.partition('.')[0]}" in FREE_OF_TORCH


@cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


def imports(body: ast.AST) -> Iterator[tuple[str, int]]:
    """Modules that a file imports, at any depth, with their lines; not those for type checking."""
    for node in ast.iter_child_nodes(body):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = node.module or ""
            if node.level:  # only workloads import by relative names, of their own folder or the one above
                homes = [f"{home}.{package}".rstrip(".") for home in ("charact.workloads", "charact.workloads.images")]
                package = next((home for home in homes[:: 1 if package else -1] if home in SOURCES), homes[0])
            for alias in node.names:
                module = f"{package}.{alias.name}"
                yield (module if module in SOURCES else package), node.lineno
        else:
            yield from imports(node)


def violations(source: str, module: str) -> list[str]:
    """Imports that a module's layer may not have."""
    own, found = layer(module), []
    for name, line in imports(parsed(source)):
        top = name.partition(".")[0]
        if top == "charact" and not may_import(own, layer(name)):
            found.append(f"{module}:{line} imports {name}: {own or 'the top'} may not import {layer(name)}")
        if top == "torch" and free_of_torch(module):
            found.append(f"{module}:{line} imports torch")
    return found + at_start(source, module)


def at_start(source: str, module: str) -> list[str]:
    """Heavy libraries that a command's file imports when the command line starts, before it knows what to run."""
    if module != "charact.cli" and not starting(module):
        return []
    body = [node for node in parsed(source).body if not isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return [f"{module}:{line} imports {name} when the command line starts"
            for name, line in imports(ast.Module(body=body, type_ignores=[])) if name.partition(".")[0] in HEAVY]


def starting(module: str) -> bool:
    """Whether a file of commands is imported when the command line starts, and not inside functions only."""
    _, in_commands, name = f"{module}.".partition(".commands.")
    is_helper = name.startswith(("_", "sweep.")) and name != "sweep."
    return bool(in_commands) and (not is_helper or name.endswith((".options.", ".user_model_options.", ".cli.")))


def graph() -> dict[str, set[str]]:
    """Modules that each module imports."""
    found = {}
    for module, path in SOURCES.items():
        named = {name for name, _ in imports(parsed(path.read_text(encoding="utf-8"))) if name in SOURCES}
        found[module] = named - {module}
    return found


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """Groups of modules that import each other, directly or by way of others."""
    reached: dict[str, set[str]] = {}
    for start in edges:
        seen: set[str] = set()
        waiting = list(edges[start])
        while waiting:
            module = waiting.pop()
            if module not in seen:
                seen.add(module)
                waiting += edges[module]
        reached[start] = seen
    found: list[set[str]] = []
    for module in edges:
        circle = {other for other in reached[module] if module in reached[other]}
        if circle and circle not in found:
            found.append(circle)
    return found


def test_every_folder_is_a_layer() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert folders | {"workloads"} == MAY_IMPORT.keys() | FEATURES.keys() | {"integrations"}


def test_no_import_runs_back() -> None:
    found = [each for module, path in SOURCES.items() for each in violations(path.read_text(encoding="utf-8"), module)]
    assert found == []


def test_no_files_import_each_other() -> None:
    assert circles(graph()) == []


def test_no_folder_is_crowded() -> None:
    folders = {path.parent for path in SOURCES.values()}
    sizes = {folder: sum(path.name != "__init__.py" for path in folder.glob("*.py")) for folder in folders}
    assert [str(folder) for folder, size in sizes.items() if size > LARGEST_FOLDER] == []


def test_records_are_read_and_commands_start_without_torch_and_modules_of_unix() -> None:
    """A file may import torch by way of others; Windows lacks these modules, and some signals and functions."""
    commands = [name for name in SOURCES if starting(name)]
    readers = [name for name in SOURCES if free_of_torch(name)]
    program = f"""
import sys, signal, os
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
for module, name in ((signal, "SIGHUP"), (os, "register_at_fork"), (os, "fork")):
    if hasattr(module, name):
        delattr(module, name)
import charact, charact.cli, {', '.join([*readers, *commands])}
assert "torch" not in sys.modules
import charact.execution.interrupt
assert charact.cli.run(["--help"]) == 0
"""
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(("module", "source"), [
    ("charact.analysis.profile.breakdown", "import torch"),
    ("charact.analysis.profile.breakdown", "from charact.measure.passes.timing import time_case"),
    ("charact.analysis.profile.breakdown", "from charact import measure"),
    ("charact.analysis.profile.breakdown", "def f():\n    import torch.nn"),
    ("charact.analysis.profile.breakdown", "from charact.bricks.aten import runnable"),
    ("charact.views.terminal.renderer", "import charact.measure.passes.timing"),
    ("charact.measure.counters.host", "from charact.views.tables import format"),
    ("charact.record.reader", "from charact.bricks.suite.composition import Composition"),
    ("charact.workloads.images.resnet", "from charact.record.reader import load_run"),
    ("charact.core.operator_types", "from charact.traces.events import Operator"),
    ("charact.commands.list", "import torch"),
    ("charact.commands.list", "from charact.cli import main"),
    ("charact.commands.list", "try:\n    from rich.table import Table\nexcept ImportError:\n    pass"),
    ("charact.cli", "import pandas as pd"),
])
def test_a_planted_import_is_found(module: str, source: str) -> None:
    assert len(violations(source, module)) == 1


@pytest.mark.parametrize(("module", "source"), [
    ("charact.analysis.profile.breakdown", "from charact.record.reader import Run\nimport pandas"),
    ("charact.bricks.analysis.construction", "from charact.bricks.suite.composition import Composition"),
    ("charact.measure.passes.timing", "import torch\nfrom charact.record.writer import RunWriter"),
    ("charact.commands.list", "def command():\n    import torch\n    from charact.views.terminal import summary"),
    ("charact.commands.list", "if TYPE_CHECKING:\n    import torch"),
])
def test_an_import_that_runs_down_is_allowed(module: str, source: str) -> None:
    assert violations(source, module) == []


def test_planted_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [{"a", "b", "c"}]
