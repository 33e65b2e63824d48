"""Names that a Python file declares, read without running it: completion in a shell cannot wait for PyTorch."""

import ast
from pathlib import Path


def declared_names(path: Path, variable: str) -> list[str]:
    """Return the names of the objects in a module's list, such as `WORKLOADS = [Model(name="a", aliases=("b",))]`.

    Each element is a call. Its names are the keywords `name` and `aliases`, else a first argument that is a text, else
    the defaults of the class, if the file has it. A name that is computed is left out.
    """
    module = ast.parse(path.read_bytes())
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    elements = _value(module, variable)
    names: list[str] = []
    for call in elements.elts if isinstance(elements, ast.List) else ():
        if isinstance(call, ast.Call):
            given = {keyword.arg: keyword.value for keyword in call.keywords}
            default = classes.get(call.func.id) if isinstance(call.func, ast.Name) else None
            values = [given.get(key) or (_value(default, key) if default else None) for key in ("name", "aliases")]
            if values[0] is None and call.args:
                values[0] = call.args[0]
            texts = [text for value in values for text in (value.elts if isinstance(value, ast.Tuple) else [value])]
            names += [text.value for text in texts if isinstance(text, ast.Constant) and isinstance(text.value, str)]
    return names


def _value(body: ast.Module | ast.ClassDef, variable: str) -> ast.expr | None:
    """Return the last expression that a body assigns to a variable."""
    assigned = None
    for node in body.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id == variable for target in targets):
            assigned = node.value
    return assigned
