"""Discovery of plugin modules: a new file in a folder is found without registration."""

import importlib
import pkgutil
from types import ModuleType


def modules_in(package_name: str) -> list[ModuleType]:
    """Import every module directly inside a package, in alphabetical order; names that begin with `_` are left out."""
    package = importlib.import_module(package_name)
    names = sorted(info.name for info in pkgutil.iter_modules(package.__path__) if not info.name.startswith("_"))
    return [importlib.import_module(f"{package_name}.{name}") for name in names]


def modules_below(package_name: str) -> list[ModuleType]:
    """Import every module inside a package and inside the packages below it, like `modules_in`."""
    found = []
    for module in modules_in(package_name):
        found += modules_below(module.__name__) if hasattr(module, "__path__") else [module]
    return found
