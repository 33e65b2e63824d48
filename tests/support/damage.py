"""Files as they arrive when something went wrong on their way, and readers that may refuse them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from charact.core.errors import UserError
from charact.record.in_progress import CHECKSUM, TABLE_CHECKSUMS, checksum, write_manifest


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Content with a bit flipped, its end cut off, something put after it, or nothing wrong."""
    flipped = bytearray(content)
    flipped[draw(st.integers(0, len(content) - 1))] ^= 1 << draw(st.integers(0, 7))
    cut = content[: draw(st.integers(0, len(content)))]
    return draw(st.sampled_from([content, bytes(flipped), cut, content + draw(st.binary(max_size=40))]))


def attempt(read: Callable[..., Any], *arguments: Any) -> Any:
    """What a reader returns, or the error with which it refuses, which is one line."""
    try:
        return read(*arguments)
    except UserError as error:
        refusal = error
    assert "\n" not in str(refusal)
    return refusal


def change_manifest(run: Path, **changes: Any) -> None:
    write_manifest(run, json.loads((run / "run.json").read_text()) | changes)


def reseal(run: Path) -> None:
    tables = {path.stem: checksum(path.read_bytes()) for path in run.glob("*.parquet")}
    change_manifest(run, **{TABLE_CHECKSUMS: tables})


def unseal(run: Path) -> None:
    """Remove a run's checksums: early versions of charact wrote none."""
    manifest = json.loads((run / "run.json").read_text())
    for key in (CHECKSUM, TABLE_CHECKSUMS):
        manifest.pop(key, None)
    (run / "run.json").write_text(json.dumps(manifest))
