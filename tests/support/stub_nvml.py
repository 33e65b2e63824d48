"""Driving the real NVML binding against a library that is compiled here: no GPU is needed, nor harmed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

PLAIN = "0a0a0a0a-0000-0000-0000-000000000001"
"""UUID of a GPU, as PyTorch tells it."""
DIVIDED = "0b0b0b0b-0000-0000-0000-000000000002"
"""UUID of a GPU with MIG."""
INSTANCE = "0c0c0c0c-0000-0000-0000-000000000003"
"""UUID of its one instance."""

LOST = "* 15"
"""Rule by which every question to a device fails from now on as if it had fallen off the bus."""

_HERE = Path(__file__).parent


class StubNvml:
    """A process in which `libnvidia-ml.so.1` is the stub; it is asked for counters, and ends with the block."""

    def __init__(self, folder: Path, *flags: str) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("there is no C compiler to build the stub library with")
        library, source = folder / "libnvidia-ml.so.1", _HERE / "stub_nvml.c"
        subprocess.run([compiler, "-shared", "-fPIC", *flags, "-o", str(library), str(source)], check=True)
        surroundings = {"LD_LIBRARY_PATH": str(folder), "STUB_NVML_RULES": str(folder / "rules"),
                        "STUB_NVML_CALLS": str(folder / "calls"), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen([sys.executable, "-W", "error", str(_HERE / "nvml_worker.py")], text=True,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | surroundings)

    def __enter__(self) -> "StubNvml":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self._process.communicate()

    def ask(self, do: str, source: str, uuid: str = PLAIN, rules: str = "", visible: str = "", **what: Any) -> Any:
        """What came of a call of the worker's; all that was opened and allocated has been given back."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"do": do, "source": source, "uuid": uuid, "rules": rules, "visible": visible, **what}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        calls = answer["calls"]
        assert calls.get("open") == calls.get("close")
        assert calls.get("allocate") == calls.get("free")
        return answer["found"]
