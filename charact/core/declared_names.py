"""Names that a Python file declares, read without running it: completion in a shell cannot wait for PyTorch."""

import ast
from collections.abc import Iterator
from pathlib import Path


def declared_names(path: Path, variable: str) -> list[str]:
    """Return the names of the objects in a module's list, such as `WORKLOADS = [Model(name="a", aliases=("b",))]`.

    Each element is a call. Its names are the keywords `name` and `aliases`, else a first argument that is a text, else
    the defaults of the class, if the file has it. A name that is computed is left out.
    """
    module = ast.parse(path.read_bytes())
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    found = _value(module, variable)
    if not isinstance(found, ast.List):
        return []
    return [name for call in found.elts if isinstance(call, ast.Call) for name in _names(call, classes)]


def _names(call: ast.Call, classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    default = classes.get(call.func.id) if isinstance(call.func, ast.Name) else None
    values = [given.get(key) or (_value(default, key) if default else None) for key in ("name", "aliases")]
    if values[0] is None and call.args:
        values[0] = call.args[0]
    for value in values:
        texts = value.elts if isinstance(value, ast.Tuple) else [value]
        yield from (text.value for text in texts if isinstance(text, ast.Constant) and isinstance(text.value, str))


def _value(body: ast.Module | ast.ClassDef, variable: str) -> ast.expr | None:
    """Return the last expression that a body assigns to a variable."""
    found = None
    for node in body.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id == variable for target in targets):
            found = node.value
    return found
