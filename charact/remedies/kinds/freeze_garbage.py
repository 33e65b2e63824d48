"""Exempt the objects that exist before the loop from garbage collections."""

from typing import Any

from charact.remedies.patching import OutermostCalls
from charact.remedies.program import Program
from charact.remedies.remedy import Remedy, Setting


def _settings(program: Program) -> list[Setting] | str:
    if not (expected := program.expected_frac("garbage_collection")):
        return "garbage collections take little time"
    return [Setting("freeze-garbage", {}, "gc.freeze()", "gc.collect(); gc.freeze()  # before the loop",
                    expected_frac=expected)]


def _apply() -> None:
    import gc

    is_frozen = False

    def freeze(module: Any) -> None:
        nonlocal is_frozen
        if not is_frozen:
            is_frozen = True
            gc.collect()
            gc.freeze()

    OutermostCalls(on_first=freeze)


REMEDY = Remedy("freeze-garbage", _settings, _apply, findings=("garbage_collection",))
