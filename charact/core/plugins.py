"""Discovery of plugin modules: a new file in a folder is found without registration.

A feature in a folder of its own, such as `charact/bricks/`, repeats the path of the folder to which it adds:
`charact/bricks/views/sections/` adds to `charact/views/sections/`.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType


def module_names(package_name: str) -> list[str]:
    """Return the names of the modules directly inside a package, also in features, sorted by their last part.

    Names that begin with `_` are left out. The modules are not imported.
    """
    names = [name for package in (package_name, *_in_features(package_name)) for name in _inside(package)]
    return sorted(names, key=lambda name: name.rpartition(".")[2])


def modules_in(package_name: str) -> list[ModuleType]:
    """Import the modules of `module_names`."""
    return [importlib.import_module(name) for name in module_names(package_name)]


def modules_below(package_name: str) -> list[ModuleType]:
    """Import every module inside a package and inside the packages below it, like `modules_in`."""
    return [module for package in (package_name, *_in_features(package_name)) for module in _below(package)]


def _below(package_name: str) -> Iterator[ModuleType]:
    for name in _inside(package_name):
        module = importlib.import_module(name)
        yield from _below(name) if hasattr(module, "__path__") else [module]


def _inside(package_name: str) -> list[str]:
    path = importlib.import_module(package_name).__path__
    return sorted(f"{package_name}.{info.name}" for info in pkgutil.iter_modules(path) if not info.name.startswith("_"))


def _in_features(package_name: str) -> list[str]:
    """Return the packages that add to a package: `charact.bricks.commands` to `charact.commands`."""
    root, _, inner = package_name.partition(".")
    folders = (folder for path in importlib.import_module(root).__path__ for folder in sorted(Path(path).iterdir()))
    return [f"{root}.{folder.name}.{inner}" for folder in folders
            if folder.joinpath(*inner.split("."), "__init__.py").is_file()]
