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


@pytest.mark.parametrize(("changes", "expected"), [
    ({"input_dtypes": ["Odd"]}, None), ({"input_sizes": [[-1]]}, None), ({"output_dtypes": []}, None),
    ({"input_sizes": [[2**39, 2**39]]}, None), ({"input_sizes": [[2**40]]}, None),
    ({"input_sizes": [[2**40 - 1]]}, 2**41 - 2), ({"input_sizes": [[2**26, 2**26]]}, None),
    ({"input_sizes": [[2**26, 2**26 - 1]]}, 2**53 - 2**27), ({"input_sizes": [[0], []]}, None),
    ({"input_sizes": [[9], [3, 7]], "input_dtypes": ["Double", "Char"]}, 160),
    ({"input_sizes": [[9], [3, 70]], "input_dtypes": ["Double", "Char"]}, 282),
    ({"input_sizes": [], "output_sizes": []}, 0), ({"output_sizes": [[0, 5]], "input_sizes": []}, 0)])
def test_bytes_are_those_of_inputs_or_outputs_and_null_if_unknown(
        tmp_path: Path, changes: dict[str, Any], expected: int | None) -> None:
    _, tables = dump_case(written(tmp_path / "a.json", CALL | changes), "job", by_rank=False)
    assert tables["collectives"][0]["bytes"] == expected


@pytest.mark.parametrize(("changes", "column", "expected"), [
    ({"duration_ms": None}, "device_s", None), ({"duration_ms": -0.1}, "device_s", None),
    ({"duration_ms": 0}, "device_s", 0), ({"duration_ms": 1e12}, "device_s", None),
    ({"duration_ms": 9e11}, "device_s", 9e8), ({"profiling_name": "barrier"}, "operation", "barrier"),
    ({"is_p2p": True, "p2p_seq_id": 5}, "sequence", 5), ({"p2p_seq_id": 5}, "sequence", 7),
    ({"process_group": ["0", "undefined"]}, "group", "0"), ({"process_group": ["0", ""]}, "group", "0"),
    ({"process_group": ["0", "mesh_tp"]}, "group", "mesh_tp"), ({"process_group": ["0", "mesh_tp"]}, "group_size", 2),
    ({"process_group": ["1", "mesh_tp"]}, "group_size", None),
    ({"process_group": ["1", "default_pg"]}, "group_size", 3),
    ({"process_group": ["2", "x"]}, "group_size", None)])
def test_facts_of_a_call(tmp_path: Path, changes: dict[str, Any], column: str, expected: Any) -> None:
    groups = {"0": {"ranks": "[0, 1]"}, "": {"ranks": "[0, 1, 2]"}, "2": {"ranks": ""}}
    _, tables = dump_case(written(tmp_path / "a.json", CALL | changes, pg_config=groups), "job", by_rank=False)
    assert tables["collectives"][0][column] == expected


@pytest.mark.parametrize(("file", "by_rank", "case"), [
    ("a_rank3.json", True, "job-rank3"), ("a_rank3.json", False, "job"), ("a.json", True, "job"),
    ("a_rank0.json", True, "job-rank0")])
@pytest.mark.parametrize(("number", "words"), [
    (1, "1 collective had not completed: x 0 of group default"),
    (3, "3 collectives had not completed: x 0 of group default, x 1 of group default, x 2 of group default")])
def test_cases_are_named_by_rank_and_list_at_most_three(tmp_path: Path, file: str, by_rank: bool, case: str,
                                                        number: int, words: str) -> None:
    calls = [CALL | {"profiling_name": "gloo:x", "retired": False, "collective_seq_id": index}
             for index in range(number)]
    entry, _ = dump_case(written(tmp_path / file, *calls, pg_config={}), "job", by_rank=by_rank)
    assert (entry.case, entry.device, entry.world_size) == (case, "cpu", None)
    assert entry.passes.timing.blind_spots[1:] == [words]


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
