"""docs/private_apis.md lists every private name of PyTorch that charact uses, and no other."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "private_apis.md"
OF_PYTHON = {"._asdict", "._exit", "._getframe", "._popen", "._replace",
             "._run_module_as_main"}
"""Names of Python's own library."""


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


@cache
def nodes(tree: ast.Module) -> list[ast.AST]:
    return list(ast.walk(tree))


def dotted(node: ast.expr) -> str | None:
    """A chain of attributes as text; None if it begins with something else than a name."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return None if before is None else f"{before}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


def imported(tree: ast.Module) -> dict[str, str]:
    """Full names of what a module imports from PyTorch, by the names that it gives them."""
    names: dict[str, str] = {}
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.partition(".")[0]: alias.name if alias.asname else "torch"
                      for alias in node.names if alias.name.partition(".")[0] == "torch"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def uses(tree: ast.Module) -> Iterator[str]:
    """Private names of PyTorch that a module uses, in full."""
    names = imported(tree)
    inner = {id(node.value) for node in nodes(tree) if isinstance(node, ast.Attribute)}
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.startswith("torch.") and is_private(one.name))
        elif isinstance(node, ast.Attribute) and id(node) not in inner and (chain := dotted(node)):
            first, _, rest = chain.partition(".")
            if first in names and is_private(full := f"{names[first]}.{rest}"):
                yield full
        elif isinstance(node, ast.Call) and dotted(node.func) in ("getattr", "hasattr") and len(node.args) > 1 \
                and isinstance(node.args[1], ast.Constant) and (chain := dotted(node.args[0])):
            first, dot, rest = chain.partition(".")
            if first in names and is_private(full := f"{names[first]}{dot}{rest}.{node.args[1].value}"):
                yield full
    yield from (name for name in names.values() if is_private(name))
    for text in (node.value for node in nodes(tree) if isinstance(node, ast.Constant)):
        if isinstance(text, str) and re.fullmatch(r"torch(\.\w+)+", text) and is_private(text):
            yield text


def methods(trees: list[ast.Module]) -> set[str]:
    """Private attributes that charact reads from objects and does not define itself, as `._indices`."""
    own = {node.name for tree in trees for node in nodes(tree)
           if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}
    read: set[str] = set()
    for tree in trees:
        names = imported(tree)
        for node in nodes(tree):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, (ast.Name, ast.Attribute)):
                own.add(node.target.id if isinstance(node.target, ast.Name) else node.target.attr)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                own.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif isinstance(node, ast.Attribute) and is_private(node.attr):
                chain = dotted(node.value)
                if chain is None or chain.partition(".")[0] not in names:
                    read.add(node.attr)
            elif isinstance(node, ast.Call) and dotted(node.func) in ("getattr", "hasattr") and len(node.args) > 1 \
                    and isinstance(node.args[1], ast.Constant) and is_private(str(node.args[1].value)):
                read.add(str(node.args[1].value))
    return {f".{name}" for name in read - own}


@cache
def found() -> set[str]:
    """Every private name that charact uses, without packages of other names that it uses."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "charact").rglob("*.py"))]
    trees = [ast.parse(text) for text in texts if "torch" in text]
    whole = {name for tree in trees for name in uses(tree)}
    whole |= {name for name in methods(trees) - OF_PYTHON if not any(one.endswith(name) for one in whole)}
    return {name for name in whole if not any(other.startswith(f"{name}.") for other in whole)}


def listed() -> set[str]:
    return set(re.findall(r"^\| `([\w.]+)` \|", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE))


def covers(entry: str, name: str) -> bool:
    return name == entry or name.startswith(f"{entry}.")


def test_every_private_name_is_listed() -> None:
    assert [name for name in sorted(found()) if not any(covers(entry, name) for entry in listed())] == []


def test_every_listed_name_is_used() -> None:
    names = found()
    assert [entry for entry in sorted(listed()) if not any(covers(entry, name) for name in names)] == []


def test_no_entry_covers_a_whole_private_package_of_everything() -> None:
    assert not listed() & {"torch", "torch._C", "torch._dynamo", "torch._C._autograd", "torch._C._profiler"}


def test_names_are_found_however_they_are_written() -> None:
    tree = ast.parse("""
import torch
import torch._a.b
from torch._c import d
from torch.e import f
import torch.g as h
torch.public(torch._C._one(), f._two, h._three.four)
getattr(torch._C, "_five", None)
"torch._six.seven"
torch.__version__
""")
    assert set(uses(tree)) == {"torch._a.b", "torch._c.d", "torch._C._one", "torch.e.f._two", "torch.g._three.four",
                               "torch._C", "torch._C._five", "torch._six.seven"}
    assert methods([ast.parse("x.untyped_storage()._cdata\nself._mine = 1\nself._mine")]) == {"._cdata"}
