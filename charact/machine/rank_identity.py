"""Identity of this process among the ranks of a distributed program. No torch in here."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from charact.record.schema import MOST_RANKS

_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_SLURM = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE")
_SLURM_JOB = ("SLURM_JOB_ID", "SLURM_STEP_ID")
JOB = "CHARACT_JOB"
"""Environment variable that names the job of ranks; it precedes torchrun's."""


@dataclass(frozen=True)
class RankIdentity:
    """A process among the ranks of a job.

    `job` is the same text for all ranks of one start of the program, and different for other starts, except
    that a static rendezvous on several machines repeats.
    """

    rank: int
    local_rank: int | None
    world_size: int
    job: str
    launcher: str
    """'torchrun' or 'slurm': whose variables name the rank."""

    def facts(self) -> dict[str, Any]:
        """Return the identity as a dictionary for run.json."""
        return asdict(self)


def rank_identity(environment: Mapping[str, str]) -> RankIdentity | None:
    """Return the identity that environment variables give; None if they name no job of several ranks.

    The variables of torchrun (RANK, WORLD_SIZE, LOCAL_RANK) come first, then those of a step of Slurm (SLURM_PROCID,
    SLURM_NTASKS, SLURM_LOCALID); a batch script is no step. Variables that are not valid numbers name no rank.
    """
    for launcher, names in (("torchrun", _TORCHRUN), ("slurm", _SLURM)):
        if launcher == "slurm" and _number(environment.get("SLURM_STEP_ID", "")) is None:
            continue
        rank, local_rank, world_size, _ = (_number(environment.get(name, "")) for name in names)
        if rank is not None and world_size is not None:
            if not 2 <= world_size <= MOST_RANKS or rank >= world_size:
                return None
            job = (_torchrun_job(environment) if launcher == "torchrun" else
                   [environment.get(name, "") for name in (*_SLURM_JOB, "SLURM_RESTART_COUNT")])
            digest = hashlib.sha256("\0".join(job).encode("utf-8", "surrogateescape")).hexdigest()
            return RankIdentity(rank, local_rank, world_size, digest[:12], launcher)
    return None


def _torchrun_job(environment: Mapping[str, str]) -> list[str]:
    """Return what is the same for all ranks of one start by torchrun.

    If all ranks are on one machine, the folder of torchrun's error files is new for each start. On several machines,
    each agent has its own folder: there the rendezvous identifies the start.
    """
    if JOB in environment:
        return [environment[JOB]]
    error_file = environment.get("TORCHELASTIC_ERROR_FILE", "")
    if error_file and environment.get("LOCAL_WORLD_SIZE") == environment.get("WORLD_SIZE"):
        return [os.uname().nodename, os.path.dirname(os.path.dirname(error_file))]
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", *_SLURM_JOB)
    return [environment.get(name, "") for name in names]


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else None
