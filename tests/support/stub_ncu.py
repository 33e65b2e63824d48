"""Stands for Nsight Compute's `ncu`: runs the command under it and writes CSV in the documented form.

Each operator that PyTorch dispatches inside a range that was asked for is a launch. Products of matrices execute
2 M N K FLOP as fused instructions, with one of tensor cores; the metrics of all others are constants. STUB_NCU in the
environment names a way to fail, or a chip whose tensor-core metrics have unknown names.
"""

import csv
import os
import re
import runpy
import sys
import time
from pathlib import Path
from typing import Any

FAILURES = {
    "permission": "ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on "
                  "the target device 0.",
    "busy": "Profiling failed because a driver resource was unavailable. Ensure that no other tool (like DCGM) is "
            "concurrently collecting profiling data.",
    "unsupported": "Profiling is not supported on device 0.",
    "memory": "Failed to save the device memory for replay: out of memory.",
    "other": "Failed to prepare kernel for profiling",
}
WITHOUT_VALUE = {"--nvtx", "--csv", "--query-metrics"}
LISTED = [
    "gpu__time_duration", "sm__warps_active", "smsp__thread_inst_executed_per_inst_executed",
    "smsp__thread_inst_executed_pred_on_per_inst_executed", "dram__throughput", "dram__bytes", "dram__bytes_op_read",
    *(f"smsp__sass_thread_inst_executed_op_{width}{operation}_pred_on" for width in "hfd"
      for operation in ("add", "mul", "fma")),
    "sm__ops_path_tensor_src_fp16", "sm__ops_path_tensor_src_fp16_dst_fp32", "sm__ops_path_tensor_src_int8",
]
UNKNOWN_CHIP = "unknown chip"
INSTRUCTIONS = "sm__inst_executed_pipe_tensor"
UNITS = {"gpu__time_duration.sum": "ns", "dram__bytes.sum": "byte"}
RANGES = "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
FIXED = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
         "Device", "CC", "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg", RANGES]


def main(arguments: list[str]) -> int:
    """Act as `ncu` with these arguments; returns its exit status."""
    options, command = parsed(arguments)
    if "--query-metrics" in options:
        if os.environ.get("STUB_NCU") == "old driver":
            print("==ERROR== Cuda driver is not compatible with Nsight Compute.")
            return 1
        print("Device NVIDIA Stub (ST100)")
        csv.writer(sys.stdout, quoting=csv.QUOTE_ALL).writerows(
            [["Metric Name", "Metric Type", "Metric Unit", "Metric Description"],
             *([name, "Counter", "", "what it, and others, count"] for name in listed())])
        return 0
    metrics = options["--metrics"][0].split(",")
    unknown = [name for name in metrics if name.partition(".")[0] not in listed()]
    log = Path(options["--log-file"][0])
    lines = [f"==PROF== Connected to process {os.getpid()} (/usr/bin/python3)"]
    failure = os.environ.get("STUB_NCU")
    if failure == "hangs":
        time.sleep(600)
    if failure in FAILURES or unknown:
        said = FAILURES[failure] if failure in FAILURES else f"Failed to find metric regex:^{unknown[0]}$"
        log.write_text("\n".join([*lines, f"==ERROR== {said}"]), encoding="utf-8")
        return 1
    launches, status = profiled(command, options["--nvtx-include"])
    log.write_text("\n".join([*lines, *table(metrics, launches), "==PROF== Disconnected from process 1"]) + "\n",
                   encoding="utf-8")
    return status


def listed() -> list[str]:
    """Return the metrics of the chip."""
    if os.environ.get("STUB_NCU") != UNKNOWN_CHIP:
        return LISTED
    return [*(name for name in LISTED if "tensor" not in name), "sm__ops_path_tensor_src_posit8", INSTRUCTIONS]


def parsed(arguments: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Options with their values, and the command after them."""
    options: dict[str, list[str]] = {}
    place = 0
    while place < len(arguments) and arguments[place].startswith("--"):
        if arguments[place] in WITHOUT_VALUE:
            options[arguments[place]], place = [], place + 1
        else:
            options.setdefault(arguments[place], []).append(arguments[place + 1])
            place += 2
    return options, arguments[place:]


def profiled(command: list[str], included: list[str]) -> tuple[list[dict[str, Any]], int]:
    """Run a command `python -m module ...` in this process; its launches and its exit status."""
    import torch  # late, so that failing is fast
    from torch.utils._python_dispatch import TorchDispatchMode

    started: dict[int, str] = {}
    launches: list[dict[str, Any]] = []

    class Kernels(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            outputs = function(*args, **(kwargs or {}))
            if any(name in included for name in started.values()):
                launches.append({"name": f"void {function}<float, 4>(T1 *, T2)", "ranges": list(started.values()),
                                 "flop": flop(function, args)})
            return outputs

    def range_start(name: str) -> int:
        started[len(started) + 1] = name
        return len(started)

    torch.cuda.nvtx.range_start, torch.cuda.nvtx.range_end = range_start, started.pop
    assert command[1:3] == ["-P", "-m"], command
    sys.argv = command[3:]
    try:
        with Kernels():
            runpy.run_module(command[3], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return launches, int(end.code or 0)
    return launches, 0


def flop(function: Any, args: Any) -> int:
    if str(function) != "aten.mm.default":
        return 0
    (rows, inner), (_, columns) = args[0].shape, args[1].shape
    return 2 * rows * inner * columns


def table(metrics: list[str], launches: list[dict[str, Any]]) -> list[str]:
    """Lines of the raw page: numbers have commas, every field has quotes."""
    rows = [[*FIXED, *metrics], ["" for _ in FIXED] + [UNITS.get(name, "%" if ".pct" in name else "inst")
                                                       for name in metrics]]
    for number, launch in enumerate(launches):
        ranges = "  ".join(f'"{place}:<default domain>:{name}:none:none:none:none:none:none"'
                           for place, name in enumerate(launch["ranges"]))
        rows.append([str(number), "1", "python3", "127.0.0.1", launch["name"], "1", "7", "(128, 1, 1)", "(64, 1, 1)",
                     "0", "9.0", "", ranges, *(cell(name, launch) for name in metrics)])
    return [",".join('"' + field.replace('"', '""') + '"' for field in row) for row in rows]


def cell(metric: str, launch: dict[str, Any]) -> str:
    constants = {"gpu__time_duration": 2000.0, "dram__bytes": 1_048_576.0, "sm__warps_active": 50.0,
                 "smsp__thread_inst_executed_per_inst_executed": 100.0,
                 "smsp__thread_inst_executed_pred_on_per_inst_executed": 87.5, "dram__throughput": 25.0}
    name = metric.partition(".")[0]
    if name == INSTRUCTIONS:
        return str(int(launch["flop"] > 0))
    if re.search("op_ffma", name):
        return f"{launch['flop'] // 2:,}"
    return f"{constants.get(name, 0.0):,.2f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
