"""Allocate memory of the CPU by jemalloc or tcmalloc, where one is installed."""

import glob
from collections.abc import Mapping
from typing import Any

from charact.remedies.program import Program
from charact.remedies.remedy import Remedy, Setting

_LIBRARIES = ("libtcmalloc_minimal.so*", "libtcmalloc.so*", "libjemalloc.so*")
_FOLDERS = ("/usr/lib/*-linux-gnu*", "/usr/lib64", "/usr/lib", "/usr/local/lib")
_EXPECTED_FRAC = 0.02


def _settings(program: Program) -> list[Setting] | str:
    if not program.on_cpu:
        return "the model is not on the CPU"
    if "LD_PRELOAD" in (program.run.manifest.get("software", {}).get("environment") or {}):
        return "LD_PRELOAD is set already"
    for library in _LIBRARIES:
        if paths := sorted(path for folder in _FOLDERS for path in glob.glob(f"{folder}/{library}")):
            return [Setting("allocator", {"library": paths[0]}, library.partition(".")[0],
                            f"export LD_PRELOAD={paths[0]}", expected_frac=_EXPECTED_FRAC)]
    return "neither tcmalloc nor jemalloc is installed: apt-get install libtcmalloc-minimal4"


def _environment(values: Mapping[str, Any]) -> dict[str, str]:
    return {"LD_PRELOAD": str(values["library"])}


REMEDY = Remedy("allocator", _settings, environment=_environment)
