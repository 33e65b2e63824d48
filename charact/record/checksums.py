"""Checksums of run.json and of each table, both stored in run.json. They detect damage and prove no origin."""

import hashlib
import json
from typing import Any

CHECKSUM = "checksum"
"""Key of run.json: the checksum of everything else in it."""
TABLE_CHECKSUMS = "table_checksums"
"""Key of run.json: the checksum of each table's file, by table name."""


def checksum(content: bytes) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def sealed(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest with the checksum of its content; adds `TABLE_CHECKSUMS` if it is absent.

    A sealed manifest has both keys, so that damage to one of them is detected.

    Raises:
        ValueError: a number is not finite.
    """
    whole = {TABLE_CHECKSUMS: {}} | manifest
    return whole | {CHECKSUM: _checksum(whole)}


def is_sealed(manifest: dict[str, Any]) -> bool:
    """Return whether a manifest has checksums; those of early versions of charact have none."""
    return CHECKSUM in manifest or TABLE_CHECKSUMS in manifest


def is_intact(manifest: dict[str, Any]) -> bool:
    """Return whether a sealed manifest is unchanged."""
    return TABLE_CHECKSUMS in manifest and manifest.get(CHECKSUM) == _checksum(manifest)


def _checksum(manifest: dict[str, Any]) -> str:
    content = {key: value for key, value in manifest.items() if key != CHECKSUM}
    return checksum(json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode())
