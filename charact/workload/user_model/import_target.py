"""Import of user code named on the command line, and arguments of calls."""

import ast
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from charact.core.errors import UserError
from charact.core.text import did_you_mean


def imported(target: str, option: str) -> Any:
    """Return the object `package.module:name`; modules in the working directory are found, too."""
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise UserError(f"{option}: '{target}' is not of the form package.module:name")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if f"{module_name}.".startswith(f"{error.name}."):
            raise UserError(f"{option}: there is no module {error.name}: install it, or run charact in the directory "
                            "that holds it") from error
        raise UserError(f"{option}: {module_name} imports {error.name}, which is not installed: install it") from error
    except SystemExit as error:
        raise UserError(f"{option}: importing {module_name} ended the program: put its code below "
                        "if __name__ == '__main__'") from error
    except Exception as error:
        raise UserError(f"{option}: importing {module_name} failed: {type(error).__name__}: {error}") from error
    for name in path.split("."):
        if not hasattr(found, name):
            hint = did_you_mean(name, dir(found), "name one of its attributes")
            raise UserError(f"{option}: {module_name} has no {path}: {hint}")
        found = getattr(found, name)
    return found


def call_arguments(text: str, option: str) -> dict[str, Any]:
    """Return keyword arguments from a text such as `name=value,name=value`; a bare word is a text."""
    try:
        call = ast.parse(f"_({text})", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError
        values = {one.arg: one.value.id if isinstance(one.value, ast.Name) else ast.literal_eval(one.value)
                  for one in call.keywords if one.arg is not None}
        if len(values) < len(call.keywords):  # a repeated name, or `**`
            raise ValueError
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{option}: '{text}' is not of the form name=value,name=value with numbers, lists, or texts in "
                        "quotes as values") from error
    return values


def chosen(name: str, names: Sequence[str], option: str) -> str:
    """Return the name after checking that it is one of the allowed names."""
    if name in names:
        return name
    hint = did_you_mean(name, names, f"choose from {', '.join(names)}")
    raise UserError(f"{option}: PyTorch has no '{name}': {hint}")


def kind_of(thing: Any) -> str:
    """Return the kind of an object as text."""
    return f"class {thing.__name__}" if isinstance(thing, type) else f"{type(thing).__name__} object"
