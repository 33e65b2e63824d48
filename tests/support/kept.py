"""Records that are written once by a process, and copied from then on: a copy takes a hundredth of the time."""

import atexit
import json
import secrets
import shutil
import tempfile
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Any

from charact.record.in_progress import write_manifest


@cache
def _templates() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="charact-records-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def written_once(write: Callable[..., Path]) -> Callable[..., Path]:
    """Decorate a function that writes a published run below a directory: each call returns a run with its own id."""
    written: dict[str, Path] = {}

    @wraps(write)
    def copied(out: Path, **options: Any) -> Path:
        key = repr(sorted(options.items()))
        if key not in written:
            written[key] = write(_templates() / secrets.token_hex(8), **options)
        template = written[key]
        run_id = f"{template.name.rsplit('-', 1)[0]}-{secrets.token_hex(3)}"
        shutil.copytree(template, out / run_id)
        write_manifest(out / run_id, json.loads((template / "run.json").read_text()) | {"run_id": run_id})
        return out / run_id

    return copied
