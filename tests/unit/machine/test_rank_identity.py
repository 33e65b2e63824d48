"""Which rank a process is, by the variables of its launcher."""

import pytest

from charact.machine.rank_identity import rank_identity
from charact.record.schema import MOST_RANKS

TORCHRUN = {
    "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none",
    "MASTER_ADDR": "node0", "MASTER_PORT": "29500", "TORCHELASTIC_ERROR_FILE": "/tmp/a/b/attempt_0/1/error.json",
}  # fmt: skip
SLURM = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "6", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize(("environment", "expected"), [
    (TORCHRUN, (3, 1, 4, "torchrun")), (SLURM, (5, 1, 6, "slurm")), (SLURM | TORCHRUN, (3, 1, 4, "torchrun")),
    ({"RANK": "0", "WORLD_SIZE": "2"}, (0, None, 2, "torchrun")),
    ({"RANK": "1", "WORLD_SIZE": str(MOST_RANKS)}, (1, None, MOST_RANKS, "torchrun"))])
def test_the_launcher_names_the_rank(environment: dict[str, str], expected: tuple[int, int, int, str]) -> None:
    identity = rank_identity(environment)
    assert identity is not None
    assert (identity.rank, identity.local_rank, identity.world_size, identity.launcher) == expected
    assert identity.facts() == dict(zip(("rank", "local_rank", "world_size", "launcher"), expected, strict=True)) | {
        "job": identity.job}


@pytest.mark.parametrize("environment", [
    {}, {"RANK": "0"}, {"RANK": "0", "WORLD_SIZE": "1"}, {"RANK": "x", "WORLD_SIZE": "2"},
    {"RANK": "2", "WORLD_SIZE": "2"}, {"RANK": "-1", "WORLD_SIZE": "2"}, {"RANK": "9" * 99, "WORLD_SIZE": "2"},
    {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"},
    {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "5"},  # a batch script, which starts steps
    {"RANK": "0", "WORLD_SIZE": "99999999"}, {"RANK": "0", "WORLD_SIZE": str(MOST_RANKS + 1)},
])  # fmt: skip
def test_a_process_alone_is_no_rank(environment: dict[str, str]) -> None:
    assert rank_identity(environment) is None


@pytest.mark.parametrize(("environment", "other", "same"), [
    (TORCHRUN, TORCHRUN | {"RANK": "0", "LOCAL_RANK": "0", "TORCHELASTIC_ERROR_FILE": "/tmp/x/y/attempt_0/0/e"}, True),
    (TORCHRUN, TORCHRUN | {"MASTER_PORT": "29501"}, False),
    (TORCHRUN, TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "1"}, False),
    (SLURM, SLURM | {"SLURM_PROCID": "0"}, True),
    (SLURM, SLURM | {"SLURM_STEP_ID": "1"}, False), (SLURM, SLURM | {"SLURM_RESTART_COUNT": "1"}, False),
    (TORCHRUN | {"CHARACT_JOB": "j"}, TORCHRUN | {"CHARACT_JOB": "j", "MASTER_PORT": "1"}, True),
    (TORCHRUN | {"CHARACT_JOB": "j"}, TORCHRUN | {"CHARACT_JOB": "k"}, False),
    # On one machine, two starts on the same port differ by the folder of torchrun's error files.
    (TORCHRUN | {"LOCAL_WORLD_SIZE": "4"},
     TORCHRUN | {"LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_ERROR_FILE": "/tmp/a/b/attempt_0/0/error.json"}, True),
    (TORCHRUN | {"LOCAL_WORLD_SIZE": "4"},
     TORCHRUN | {"LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_ERROR_FILE": "/tmp/a/c/attempt_0/1/error.json"}, False),
])  # fmt: skip
def test_ranks_of_one_start_share_a_job(environment: dict[str, str], other: dict[str, str], same: bool) -> None:
    one, two = rank_identity(environment), rank_identity(other)
    assert one is not None
    assert two is not None
    assert (one.job == two.job) is same
