"""Limits of the process's control groups: processor time and memory (Linux, version 1 and 2)."""

from collections.abc import Iterator
from pathlib import Path

_UNLIMITED_BYTES = 1 << 60  # version 1 writes "no limit" as the largest multiple of the page size


def quota_cores(root: Path = Path("/")) -> float | None:
    """Return the processor time that the process may use, in cores; None without a limit."""
    quotas = []
    for folder in _folders(root, "cpu"):
        limit, _, period = _read(folder / "cpu.max").partition(" ")
        limit = limit or _read(folder / "cpu.cfs_quota_us")
        period = period or _read(folder / "cpu.cfs_period_us")
        if limit not in ("", "max", "-1") and period:
            quotas.append(int(limit) / int(period))
    return min(quotas, default=None)


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory that the process may use, in bytes; None without a limit."""
    limits = []
    for folder in _folders(root, "memory"):
        limit = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
        if limit not in ("", "max") and int(limit) < _UNLIMITED_BYTES:
            limits.append(int(limit))
    return min(limits, default=None)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the process's group and of its parents, whose limits apply too.

    Inside a container the path names the group as the host sees it; the mounted folder is then the top folder, where
    the walk ends.
    """
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = mount / controller if controllers else mount
        inside = top / group.lstrip("/")
        while inside != top:
            yield inside
            inside = inside.parent
        yield top


def _read(path: Path) -> str:
    """Return the text of a file; empty if it does not exist or cannot be read, as without control groups."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
