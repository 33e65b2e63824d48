"""Facts about the machine and its software for the record, and selection of a device."""

import hashlib
import json
import math
import os
import platform
import re
import shutil
import socket
import subprocess
import time
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from charact.core.errors import UserError
from charact.machine.cgroups import memory_limit_bytes, quota_cores
from charact.record.redaction import speed_variables

if TYPE_CHECKING:
    import torch

_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
_ONEDNN_WITHOUT_BF16 = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI"}
"""Values of ONEDNN_MAX_CPU_ISA with which oneDNN uses no instruction that multiplies bfloat16."""
_GIT_LIMIT_S = 2.0
"""Time limit for finding a repository's state (s)."""
_GIT_SETTINGS = ("core.fsmonitor=false", "core.hooksPath=/dev/null", "core.untrackedCache=false",
                 "core.sshCommand=false", "status.submoduleSummary=false", "submodule.recurse=false",
                 "protocol.allow=never")  # fmt: skip
_GIT_KEPT = {"GIT_EXEC_PATH", "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM", "GIT_CONFIG_GLOBAL",
             "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM"}  # fmt: skip
_GIT_ENVIRONMENT = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1",
                    "GIT_ALLOW_PROTOCOL": "none", "GIT_SSH_COMMAND": "false", "GIT_ASKPASS": "false"}


def torch_facts() -> dict[str, Any]:
    """Return the facts of machine and software that only PyTorch knows."""
    import torch

    gpus, no_gpu_reason = gpu_facts()
    onednn = re.search(r"MKL-DNN v([\d.]+)", torch.__config__.show())
    return {
        "capability": cpu_capability(), "gpus": gpus, "no_gpu_reason": no_gpu_reason,
        "software": {"torch": str(torch.__version__), "cuda": torch.version.cuda, "hip": torch.version.hip,
                     "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
                     "mkldnn": onednn[1] if onednn else None},
    }


def machine_facts(of_torch: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return facts about the machine; `fingerprint` is equal if everything that affects speed is.

    `of_torch` is the result of `torch_facts`, if another process has called it: then PyTorch is not imported.
    """
    import psutil

    known = torch_facts() if of_torch is None else of_torch
    try:
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        system = platform.platform(terse=True)
    facts: dict[str, Any] = {
        "hostname": socket.gethostname(), "os": system, "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpu": {
            "model": cpu_model(), "num_physical_cores": psutil.cpu_count(logical=False),
            "num_logical_cores": psutil.cpu_count(), "num_usable_cores": usable_cores(),
            "capability": known["capability"],
        },
        "memory_bytes": psutil.virtual_memory().total, "memory_limit_bytes": memory_limit_bytes(),
        "gpus": known["gpus"], "no_gpu_reason": known["no_gpu_reason"],
    }
    return facts | {"fingerprint": fingerprint(facts)}


def fingerprint(facts: Mapping[str, Any]) -> str:
    """Return a short hash of what affects speed: without the machine's name and the identity of equal GPUs."""
    gpus = [{key: value for key, value in gpu.items() if key not in ("index", "uuid")} for gpu in facts["gpus"]]
    # A kernel update changes the total memory by some megabytes, so it is rounded to GiB.
    speed = [facts["architecture"], facts["cpu"], round(facts["memory_bytes"] / 2**30), gpus]
    return hashlib.sha256(json.dumps(speed, sort_keys=True).encode()).hexdigest()[:12]


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the processor's model, else its architecture."""
    if cpuinfo.exists():
        named = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(encoding="utf-8"), re.MULTILINE)
        if named:
            return named[1].strip()
    return platform.processor() or platform.machine()


def cpu_capability() -> str:
    """Return the instruction set of PyTorch's kernels, e.g. `AVX2`, and the limit of oneDNN's, if any."""
    import torch

    own, limit = torch.backends.cpu.get_cpu_capability(), onednn_limit()
    return own if limit is None else f"{own}, oneDNN at most {limit}"


def onednn_limit() -> str | None:
    """Return the latest instruction set that the environment allows oneDNN; None if it allows all."""
    limit = (os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or "DEFAULT").upper()
    return None if limit in ("DEFAULT", "ALL") else limit


def native_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return the processor's instructions that multiply bfloat16 and that oneDNN may use, by their names in Linux."""
    if onednn_limit() in _ONEDNN_WITHOUT_BF16:
        return []
    lines = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", lines, re.MULTILINE)
    return sorted(set(flags[1].split()) & _BF16_FLAGS) if flags else []


def usable_cores() -> int:
    """Return the number of cores that the process may use: its affinity, and its control group's quota rounded up."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = quota_cores()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def gpu_facts() -> tuple[list[dict[str, Any]], str | None]:
    """Return the GPUs that PyTorch can use, and the reason if there are none."""
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return [], f"torch {torch.__version__} is built without CUDA"
    with warnings.catch_warnings(record=True) as caught:  # an outdated driver is reported as a warning
        warnings.simplefilter("always")
        try:
            driver, gpus = driver_version(), list[dict[str, Any]]()
            for index in range(torch.cuda.device_count()):
                properties = torch.cuda.get_device_properties(index)
                capability = (f"{properties.major}.{properties.minor}" if torch.version.hip is None
                              else properties.gcnArchName.partition(":")[0])
                gpus.append({
                    "index": index, "name": properties.name, "uuid": f"GPU-{str(properties.uuid).removeprefix('GPU-')}",
                    "memory_bytes": properties.total_memory, "compute_capability": capability,
                    "num_multiprocessors": properties.multi_processor_count, "driver": driver,
                })
        except RuntimeError as error:
            return [], f"CUDA does not start: {_first_line(error)}"
    if gpus:
        return gpus, None
    return [], _first_line(caught[0].message) if caught else "torch finds no CUDA device"


def driver_version() -> str | None:
    """Return the version of NVIDIA's driver; None if there is none."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()


def software_facts(of_torch: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return versions, the git state of the working directory, and the environment variables that affect speed.

    `of_torch` is as in `machine_facts`.
    """
    known = torch_facts() if of_torch is None else of_torch
    return {
        "charact": version("charact"), "python": platform.python_version(), "numpy": version("numpy"),
        **known["software"], "git": git_state(Path(".")), "environment": speed_variables(os.environ),
    }


def git_state(directory: Path) -> dict[str, Any] | None:
    """Return the commit that is checked out in a directory, and whether files differ from it.

    Null outside a repository, and if git cannot be run or takes longer than 2 s. `dirty` is null if only the commit
    could be found.

    Nothing that the repository configures is run: no hook, filter, file system monitor or transport.
    """
    executable, until = find_program("git"), time.monotonic() + _GIT_LIMIT_S
    settings = list(_GIT_SETTINGS)
    # No variable names another repository, program or configuration, and none allows a transport.
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("GIT_") or name in _GIT_KEPT} | _GIT_ENVIRONMENT
    if executable is None:
        return None

    def git(*arguments: str, statuses: Sequence[int] = (0,)) -> bytes | None:
        options = [part for setting in settings for part in ("-c", setting)]
        try:
            done = subprocess.run(
                [executable, "--no-pager", *options, *arguments], cwd=directory, env=environment,
                stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=until - time.monotonic())
        except (OSError, subprocess.TimeoutExpired):  # such as no directory, no permission, no process left
            return None
        return done.stdout if done.returncode in statuses else None

    commit = os.fsdecode(git("rev-parse", "--verify", "--quiet", "HEAD") or b"").strip()
    if not re.fullmatch("[0-9a-f]+", commit):
        return None
    listed = git("config", "--null", "--name-only", "--get-regexp", r"^filter\.", statuses=(0, 1))
    if listed is None:
        return {"commit": commit, "dirty": None}
    filters = {os.fsdecode(name).removeprefix("filter.").rpartition(".")[0] for name in listed.split(b"\0") if name}
    if any(re.search("[=\n]", name) for name in filters):  # `-c` cannot name such a filter
        return {"commit": commit, "dirty": None}
    # `git status` would run the filters of touched files.
    settings += [f"filter.{name}.{setting}" for name in sorted(filters)
                 for setting in ("clean=", "smudge=", "process=", "required=false")]
    changed = git("status", "--porcelain", "--untracked-files=normal", "--ignore-submodules=all", "--no-renames")
    return {"commit": commit, "dirty": None if changed is None else bool(changed)}


def find_program(name: str, path: str | None = None) -> str | None:
    """Return the path of a program in the folders of `path`, or of PATH.

    Relative folders are skipped, because they depend on the working directory.
    """
    folders = (os.environ.get("PATH", os.defpath) if path is None else path).split(os.pathsep)
    absolute = [folder for folder in folders if os.path.isabs(folder)]
    return shutil.which(name, path=os.pathsep.join(absolute)) if absolute else None


def resolve_device(text: str) -> "torch.device":
    """Return the device named `auto` (a GPU if there is one), `cpu`, `cuda` (the first GPU) or `cuda:N`."""
    import torch

    gpus, reason = gpu_facts()
    here = ", ".join(["cpu", *(f"cuda:{gpu['index']}" for gpu in gpus)])
    if text == "auto":
        return torch.device("cuda", 0) if gpus else torch.device("cpu")
    if text == "cpu":
        return torch.device("cpu")
    named = re.fullmatch(r"cuda(?::(0|[1-9]\d{0,3}))?", text)
    if named is None:
        raise UserError(f"unknown device '{text}': choose auto, cpu, cuda or cuda:N (here are {here})")
    if not gpus:
        raise UserError(f"no device {text} here ({reason}): choose --device cpu")
    index = int(named[1] or 0)
    if index >= len(gpus):
        raise UserError(f"no device {text} here: choose from {here}")
    return torch.device("cuda", index)


def device_name(device: "torch.device") -> str:
    """Return the model of a device, e.g. `NVIDIA H100 80GB HBM3` or that of the processor."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()


def _first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0]
