"""Import hook that calls a function once a module has been imported, so that charact does not import PyTorch early.

A program may set variables that PyTorch's libraries read when they are loaded (OMP_NUM_THREADS), or never import it.
"""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def when_imported(name: str, then: Callable[[], None]) -> Callable[[], None]:
    """Call `then` when a module has been imported; at once if it already is. Return a function that cancels this."""
    if name in sys.modules:
        then()
        return lambda: None
    finder = _Finder(name, then)
    sys.meta_path.insert(0, finder)
    return lambda: sys.meta_path.remove(finder) if finder in sys.meta_path else None


class _Finder(MetaPathFinder):
    """Finder of one module that lets the other finders find it and adds a call after its execution.

    A program may look for the module without importing it.
    """

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then
        self._asking_others = False

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
                  ) -> ModuleSpec | None:
        """Return the spec of the module; None for all other modules."""
        if fullname != self._name or self._asking_others:
            return None
        self._asking_others = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking_others = False
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader
        execute = loader.exec_module

        def execute_and_call(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)  # the loader is unchanged afterwards; another hook may have done it
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._then()

        loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec
