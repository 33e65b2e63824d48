"""Dumps of the flight recorder: collectives with their bytes, and what had not completed."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.traces import training

from charact.core.errors import UserError
from charact.traces.collective_names import kernel_operation, operation_name
from charact.traces.recorder_dumps import dump_case, is_dump

CALL = {
    "collective_seq_id": 7, "input_dtypes": ["BFloat16"], "input_sizes": [[4, 10]], "is_p2p": False, "op_id": 1,
    "output_dtypes": ["BFloat16"], "output_sizes": [[8, 10]], "p2p_seq_id": 0, "pg_id": 0,
    "process_group": ["0", "default_pg"], "profiling_name": "nccl:_all_gather_base", "record_id": 0, "retired": True,
    "state": "completed", "time_created_ns": 1_000_000_000, "duration_ms": 2.5,
}  # fmt: skip


def written(path: Path, *calls: dict[str, Any], **outside: Any) -> Path:
    content = {"comm_lib_version": "", "entries": list(calls), "pg_config": {"0": {"ranks": "[0, 1]"}}} | outside
    path.write_text(json.dumps(content))
    return path


def test_facts_of_collectives_and_what_had_not_completed(tmp_path: Path) -> None:
    later = CALL | {"time_created_ns": 1_500_000_000, "collective_seq_id": 8}
    path = written(tmp_path / "dump_rank3.json", later, CALL)
    entry, tables = dump_case(path, "job", by_rank=True)
    assert (entry.case, entry.rank, entry.world_size, entry.device) == ("job-rank3", 3, 2, "cuda")
    assert [row["host_s"] for row in tables["iterations"]] == [0.5]
    first, second = tables["collectives"]
    assert first == {"iteration": 0, "phase": "communication", "group": "default", "group_size": 2, "sequence": 7,
                     "operation": "_all_gather_base", "bytes": 160, "start_s": 0, "wait_s": None, "exposed_s": None,
                     "device_s": 0.0025}
    assert (second["sequence"], second["start_s"]) == (8, 0.5)
    waiting = [CALL | {"retired": False, "collective_seq_id": number, "profiling_name": "gloo:all_reduce"}
               for number in range(10, 15)]
    entry, _ = dump_case(written(tmp_path / "a.json", CALL, *waiting), "job", by_rank=False)
    assert entry.passes.timing.blind_spots[-1] == (
        "5 collectives had not completed: all_reduce 10 of group default, all_reduce 11 of group default, "
        "all_reduce 12 of group default and 2 more")
    assert not is_dump(training(1).write(tmp_path / "trace.json.gz"))
    assert is_dump(written(tmp_path / "dump.json", CALL))


@pytest.mark.parametrize("spoiled", [{"input_dtypes": ["Odd"]}, {"input_sizes": [[-1]]}, {"output_dtypes": []},
                                     {"input_sizes": [[2**39, 2**39]]}])
def test_unknown_sizes_are_null(tmp_path: Path, spoiled: dict[str, Any]) -> None:
    _, tables = dump_case(written(tmp_path / "a.json", CALL | spoiled), "job", by_rank=False)
    assert tables["collectives"][0]["bytes"] is None


@pytest.mark.parametrize(("calls", "reason"), [
    ([], "has no collectives: set TORCH_FR_BUFFER_SIZE"), ([{"time_created_ns": -1}], "impossible times"),
    ([{"collective_seq_id": -1}], "impossible times"), ([{"process_group": ["0"]}], "is not a dump of the flight"),
    ([{"profiling_name": 3}], "is not a dump of the flight")])
def test_what_is_no_dump_is_one_line(tmp_path: Path, calls: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        dump_case(written(tmp_path / "a.json", *(CALL | call for call in calls)), "job", by_rank=False)


@pytest.mark.parametrize(("name", "expected"), [
    ("allreduce", "all_reduce"), ("_reduce_scatter_base", "reduce_scatter"), ("allgather_into_tensor_coalesced",
                                                                            "all_gather_into_tensor"),
    ("all_to_allv", "all_to_allv"), ("broadcast", "broadcast"), ("___", "___")])
def test_names_of_operations(name: str, expected: str) -> None:
    assert operation_name(name) == expected


@pytest.mark.parametrize(("name", "expected"), [
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", "reduce_scatter"), ("ncclKernel_AllGather_RING", "all_gather"),
    ("ncclDevKernel_SendRecv(x)", "sendrecv"), ("ncclDevKernel_Generic(x)", "unknown"), ("my_nccl_thing", "unknown")])
def test_operations_of_kernels(name: str, expected: str) -> None:
    assert kernel_operation(name) == expected
