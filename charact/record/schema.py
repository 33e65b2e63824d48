"""Schema of a record: version, allowed values, and columns of its tables.

Tools outside charact read these files. A new nullable column keeps the version; any other change increments it, and
`charact.record.reader` then upgrades or rejects older records.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

SCHEMA_VERSION = 1

Rows = list[dict[str, Any]]
"""Rows of a table, without the column `case` until they are written."""

PHASES = ("data", "forward", "loss", "sample", "backward", "update", "communication", "other")
"""Phases of an iteration, in order; `sample` chooses the next words of a generation. They never overlap; with `other`
they sum to the iteration's wall time."""

ITERATION_KINDS = ("warm-up", "timed", "pass")
"""Kinds of the iterations of a watched program."""

LOAD_PHASES = ("build", "read", "place")
"""Phases of a load: creating the model, reading the file, moving the weights to the device."""

MEMORY_CATEGORIES = ("weights", "unsharded_weights", "gradients", "optimizer_state", "activations", "temporary",
                     "input", "kv_cache", "communication_buffers", "workspaces", "unknown")
"""`kv_cache`: what a generation keeps from one word to the next; `unsharded_weights`: parameters that FSDP2 has
gathered from all ranks; `communication_buffers`: tensors that a collective reads or writes and that hold neither
parameters nor the gradients of an update."""

MEMORY_ORIGINS = ("tensors", "workspaces", "rounding")
"""Origins of estimated bytes: tensors (exact), operators' workspaces (measured or modelled), rounding of each block
by the device's allocator."""

NOT_SEARCHED = "not searched"
"""Start of the reason why it is not known what would fit, if nothing was searched; ": " and a command follow."""

GENERATING_MODES = ("prefill", "decode")
"""Modes of a generation: prompts are read at once, and then one word after another."""

MODES = ("train", "infer", *GENERATING_MODES)

GENERATE = "generate"
"""Name of both modes of a generation together."""

CACHES = ("static", "growing", "int8", "none")
"""How a generation keeps keys and values; see `charact.workload.key_value_cache`."""

ATTENTION = {"flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION",
             "math": "MATH"}
"""Backends of scaled dot-product attention, and their names in `torch.nn.attention.SDPBackend`."""

CPU_ATTENTION = ("flash", "math")
"""Those that a CPU has."""

NO_CACHE = "none"
"""The one of `CACHES` that keeps nothing: the model reads all words again for each new one."""

STEP_KINDS = ("prefill", "decode", "mixed")
"""Kinds of an inference server's steps."""

KERNEL_KINDS = ("GEMM", "attention", "normalization", "communication", "copy", "other")
"""Kinds of the device's work in these steps."""

SAMPLED_PHASES = {"data": ("num_data_samples", "data_frames"), "forward": ("num_forward_samples", "forward_frames"),
                  "loss": ("num_loss_samples", "loss_frames"),
                  "backward": ("num_backward_samples", "backward_frames"),
                  "update": ("num_update_samples", "update_frames"), "other": ("num_samples", "frames"),
                  "outside": ("num_outside_samples", "outside_frames"),
                  "between": ("num_between_samples", "between_frames"),
                  "slow": ("num_slow_samples", "slow_frames")}
"""Facts of the pass `frames`, by phase: the number of samples, and the most frequent lines of the program.

`PHASES_IN_PYTORCH`: only if code of the program's own runs in them. `outside`: outside of all iterations of the
program, recorded with its first case. `between`: those of `outside` since the first iteration began. `slow`: in the
slow iterations of the case (see `charact.core.slow_iterations`), whichever phase; those of the warm-up count, too.
"""

PHASES_IN_PYTORCH = ("backward", "update")
"""Phases that usually run inside of PyTorch: their lines are of interest if the program's own code runs in them."""

PARALLEL = ("ddp", "fsdp2")
"""How ranks train together: `DistributedDataParallel` replicates the model in each rank; FSDP2 (`fully_shard`) shards
parameters, gradients and optimizer state over the ranks."""

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "pure-bf16", "int8-weights")

OPERATION_PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "int8")
"""Precisions of basic operations, whose inputs all have this type."""

DIRECTIONS = ("forward", "backward_input", "backward_weight")
"""Directions of basic operations."""

STRATEGIES = ("sequential", "critical_path", "corrected")
"""Ways to construct a model's latency from bricks: the sum of their times; the critical path of the model's graph; the
sum with a correction from other models."""

STAGES = ("training", "validation", "checkpointing", "load_cold", "load_warm", "prediction")
"""Stages of the total time of a training or an inference."""

DAMAGED = "damaged"
"""Status for a case with unusable facts in run.json; only in recovered runs."""

CASE_STATUSES = ("ok", "oom", "diverged", "error", "interrupted", "running", DAMAGED)
"""`diverged`: the loss became NaN or infinite. `running`: the run was killed."""

UNFINISHED = ("running", "interrupted")
"""Statuses of a case that can be resumed."""
RUN_STATUSES = ("complete", "interrupted", "running")
PASS_STATUSES = ("ok", "failed", "skipped")

LEFT_OUT = "left_out"
"""Status of a brick that was not timed, because its time is predicted."""

ColumnType = Literal["string", "int64", "float64"]

LARGEST = {"int64": 2.0**53, "float64": 1e30}
"""Largest magnitude of a number. pandas stores an integer column with nulls as floats, which are exact up to 2^53; sums
and squares of floats up to 1e30 stay finite."""


MOST_RANKS = 2**20
"""Largest number of ranks of a program."""


@dataclass(frozen=True)
class Column:
    """A column: its name ends in its unit, and its description gives the meaning of nulls.

    Numbers are finite. The other fields give the allowed values; readers reject a table with others.
    """

    name: str
    type: ColumnType
    description: str
    nullable: bool = True
    allowed: tuple[str, ...] | None = None
    """All allowed values of a text."""
    least: float | None = None
    """Smallest value of a number."""
    most: float | None = None
    """Largest value of a number; by default that of `LARGEST`."""
    json: Any = None
    """Type of the JSON value in a text, for `msgspec`."""


_CASE = Column("case", "string", "identifier of the case, as in run.json", nullable=False)

TABLES: dict[str, tuple[Column, ...]] = {
    "iterations": (
        _CASE,
        Column("iteration", "int64", "index of the timed iteration, from 0; warm-up is not recorded",
               nullable=False, least=0),
        Column("phase", "string", "one of schema.PHASES; the rows of an iteration sum to its wall time",
               nullable=False, allowed=PHASES),
        Column("part", "string", "model or optimizer that the phase belongs to; null if the program has only one"),
        Column("host_s", "float64", "host time between the phase's annotations, measured", nullable=False),
        Column("device_s", "float64", "time between the phase's CUDA events, measured; null on a CPU"),
    ),
    "program_iterations": (
        _CASE,
        Column("index", "int64", "index of the iteration among all of the watched program, from 0, in order of time",
               nullable=False, least=0),
        Column("kind", "string", "'warm-up' (left out at the start), 'timed', or 'pass' (run while a pass other than "
                                 "the timing measured)", nullable=False, allowed=ITERATION_KINDS),
        Column("iteration", "int64", "index in the table iterations; null if it is not there: not timed, or beyond the "
                                     "requested number", least=0),
        Column("start_s", "float64", "time of its start since charact began to watch the program", nullable=False),
        Column("wall_s", "float64", "host time of the iteration, measured; slowed by the instrument in a 'pass'",
               nullable=False),
        *(Column(f"{phase}_s", "float64", f"host time in the phase '{phase}'; null if the iteration has none")
          for phase in PHASES[:-1]),
        Column("other_s", "float64", "host time outside of all phases, including compile_s", nullable=False),
        Column("compile_s", "float64", "host time in which PyTorch's compiler ran; null if it did not"),
        Column("input_shapes", "string", "shapes of the tensors that each outermost model was first called with in the "
                                         "iteration, as JSON, e.g. [[8,3,224,224]]; null if none was seen",
               json=list[list[int]]),
        Column("context", "int64", "tokens of each request that the model has read by the iteration's end, in a "
                                   "generation; null in other iterations", least=0),
        Column("first_of_epoch", "int64", "1 if the iteration's first batch is the first since its loader was started, "
                                          "else 0", nullable=False, least=0, most=1),
        Column("gc_s", "float64", "time in collections of Python's garbage collector of at least 1 ms; null if there "
                                  "was none"),
        Column("rss_bytes", "float64", "resident set of the process at or shortly before the iteration's end; null if "
                                       "not sampled", least=0),
        Column("allocated_bytes", "float64", "bytes of tensors in the CUDA allocator at the same time; null on a CPU",
               least=0),
        Column("workers_bytes", "float64", "unshared memory of the loaders' worker processes, their sum; null without "
                                           "workers, or if not sampled", least=0),
    ),
    "windows": (
        _CASE,
        Column("window", "int64", "index of the window of time, from 0; windows without iterations of the case have no "
                                  "rows", nullable=False, least=0),
        Column("phase", "string", "phase of the times; null for whole iterations", allowed=PHASES),
        Column("start_s", "float64", "time of the window's start since charact began to watch the program",
               nullable=False),
        Column("end_s", "float64", "time of its end", nullable=False),
        Column("num_iterations", "int64", "iterations of the case that ended in the window", nullable=False, least=1),
        Column("sum_s", "float64", "time of all these iterations in the phase: on the device if it has times there, "
                                   "else on the host", nullable=False, least=0),
        *(Column(name, "float64", f"{text} of the phase's time in an iteration, within 1 %; 0 in iterations without it",
                 nullable=False, least=0)
          for name, text in (("median_s", "median"), ("p90_s", "90 % quantile"), ("p99_s", "99 % quantile"))),
        Column("max_s", "float64", "longest time of the phase in an iteration", nullable=False, least=0),
        Column("rss_bytes", "float64", "resident set of the process at the window's end; null if not sampled, and in "
                                       "rows of phases", least=0),
        Column("allocated_bytes", "float64", "bytes of tensors in the CUDA allocator at the same time; null on a CPU, "
                                             "and in rows of phases", least=0),
    ),
    "collectives": (
        _CASE,
        Column("iteration", "int64", "index of the timed iteration, as in iterations", nullable=False, least=0),
        Column("phase", "string", "phase in which the rank called the collective; 'communication' between phases",
               nullable=False, allowed=PHASES),
        Column("group", "string", "process group; 'default' for that of all ranks", nullable=False),
        Column("group_size", "int64", "number of ranks in the group; null if not known", least=0),
        Column("sequence", "int64", "index of the collective in its group, the same on each of its ranks",
               nullable=False, least=0),
        Column("operation", "string", "name in the backend, e.g. all_reduce; on gloo, a reduce_scatter of FSDP2 is an "
                                      "all_reduce", nullable=False),
        Column("bytes", "float64", "bytes of its inputs or of its outputs on this rank, whichever are more; null if "
                                   "not known", least=0),
        Column("start_s", "float64", "time of the call since the iteration's start, on the rank's own clock",
               nullable=False),
        Column("wait_s", "float64", "time from the call to the end of the collective, on the rank's own clock; null if "
                                    "the host did not wait for it, or for several of which this is not the last"),
        Column("exposed_s", "float64", "time in which the host did nothing but wait for it, or, in an imported trace, "
                                       "in which nothing was computed; null if the device waits"),
        Column("device_s", "float64", "time of the collective on the device, measured by the backend; null on a CPU"),
    ),
    "operators": (
        _CASE,
        Column("phase", "string", "phase in which the operator ran", allowed=PHASES),
        Column("operator", "string", "name in PyTorch, e.g. aten::mkldnn_convolution", nullable=False),
        Column("operator_type", "string", "convolution, GEMM, normalization, ...; 'other' if no rule matches",
               nullable=False),
        Column("layer", "string", "qualified name of the nn.Module; a backward operator's is that of its forward "
                                  "operator, and that of a compiled kernel the innermost one that contains all "
                                  "operations that it computes; null outside any module"),
        Column("input_shapes", "string", "shapes of the tensor inputs as JSON, e.g. [[8,3,224,224],[64,3,7,7]]",
               json=list[Any]),
        Column("dtype", "string", "type of the first floating-point tensor input with a dimension, e.g. float32; null "
                                  "if there is none or the trace lacks types"),
        Column("num_calls", "float64", "calls per iteration, mean over the pass", least=0),
        Column("self_host_s", "float64", "host time per iteration without nested operators, measured under the "
                                         "profiler, which slows it"),
        Column("device_s", "float64", "time of the kernels that it launched itself, per iteration; null on a CPU"),
        Column("flop", "float64", "floating-point operations per iteration, counted on fake tensors; null if not "
                                  "counted; in the row with the time of its layer and operator type",
               least=0),
        Column("bytes", "float64", "bytes of inputs read and outputs written once per iteration, modelled on fake "
                                   "tensors; in the same row as flop", least=0),
    ),
    "kernels": (
        _CASE,
        Column("phase", "string", "phase in which the operator that launched it ran", allowed=PHASES),
        Column("operator", "string", "operator that launched it; null if the trace lacks it"),
        Column("kernel", "string", "name of the kernel, copy or fill on the device", nullable=False),
        Column("num_calls", "float64", "launches per iteration, mean over the pass", least=0),
        Column("device_s", "float64", "device time per iteration, measured"),
        Column("grid", "string", "grid dimensions as JSON; null for copies and fills", json=list[Any]),
        Column("block", "string", "block dimensions as JSON; null for copies and fills", json=list[Any]),
        Column("registers", "int64", "registers per thread; null for copies and fills"),
        Column("shared_memory_bytes", "int64", "shared memory per block; null for copies and fills"),
        Column("occupancy_frac", "float64", "estimated achieved occupancy (from launch geometry, not a counter)"),
    ),
    "serving_steps": (
        _CASE,
        Column("step", "int64", "index of the inference server's step, from 0", nullable=False, least=0),
        Column("start_s", "float64", "start of the step on the host since the trace's first event; of a graph replay, "
                                     "its launch", nullable=False, least=0),
        Column("host_s", "float64", "time of the step on the host; null for a graph replay", least=0),
        Column("kind", "string", "prefill (processes prompts), decode (each sequence gets its next tokens) or mixed; "
                                 "null if not known", allowed=STEP_KINDS),
        Column("kind_reason", "string", "why the kind is null; null if it is known"),
        Column("evidence", "string", "what the step, and its kind, are known from", nullable=False),
        Column("num_requests", "int64", "requests of the step; null if not named", least=0),
        Column("num_context_requests", "int64", "requests whose prompt the step processes; null if not named", least=0),
        Column("num_tokens", "int64", "tokens that the step processes; null if not named", least=0),
        Column("num_kernels", "int64", "kernels, copies and fills that were launched in the step", nullable=False,
               least=0),
        Column("num_replays", "int64", "graph replays in the step", nullable=False, least=0),
        Column("graph", "string", "the graph that the step replays; null if there is none, or several"),
        Column("kernel_s", "float64", "sum of the times of its kernels, copies and fills", nullable=False, least=0),
        Column("graph_s", "float64", "part of kernel_s in graph replays", nullable=False, least=0),
        Column("device_s", "float64", "time from the start of its first work on the device to the end of its last; "
                                      "null without such work", least=0),
        Column("cycle_s", "float64", "time from the end of the steps before, on the device, to the step's end; of the "
                                     "first step, from its start on the host; null without work on the device",
               least=0),
        Column("busy_s", "float64", "part of cycle_s in which a kernel, copy or fill ran", least=0),
        Column("idle_s", "float64", "part of cycle_s since the step's first work in which nothing ran", least=0),
        Column("idle_copy_s", "float64", "part of idle_s in which the step's thread waited for a copy", least=0),
        Column("gap_s", "float64", "time before the step in which no work of a step ran: the sum of the five causes; "
                                   "of the first step since its start on the host, null for a replay; without a "
                                   "device, time between the steps on the host",
               least=0),
        Column("gap_launch_s", "float64", "part of gap_s before the launch of the step's first work, while the host "
                                          "was in a step; all before it if steps have no time on the host", least=0),
        Column("gap_queue_s", "float64", "part of gap_s after the launch of the step's first work", least=0),
        Column("gap_copy_s", "float64", "part of gap_s in which a copy ran, or the step's thread waited for one",
               least=0),
        Column("gap_host_s", "float64", "part of gap_s before the launch of the step's first work, outside of steps",
               least=0),
        Column("gap_kernel_s", "float64", "part of gap_s in which kernels outside of steps ran", least=0),
    ),
    "serving_kernels": (
        _CASE,
        Column("in_step", "int64", "1 if the work was launched in a step of serving_steps, else 0", nullable=False,
               least=0, most=1),
        Column("kind", "string", "kind of the step; null outside of steps, or if not known", allowed=STEP_KINDS),
        Column("graph", "string", "the graph whose replay the work is of; null if it was launched on its own"),
        Column("kernel_kind", "string", "GEMM, attention, normalization, communication, copy or other, by the "
                                        "operator, else by the kernel's name", nullable=False, allowed=KERNEL_KINDS),
        Column("has_operator", "int64", "1 if an operator launched the work, or the graph, else 0", nullable=False,
               least=0, most=1),
        Column("num_kernels", "int64", "kernels, copies and fills in the trace", nullable=False, least=0),
        Column("device_s", "float64", "sum of their times in the trace", nullable=False, least=0),
        Column("largest", "string", "the kernel with most of this time", nullable=False),
        Column("largest_s", "float64", "its time", nullable=False, least=0),
    ),
    "memory": (
        _CASE,
        Column("kind", "string", "'peak' (composition at the iteration's peak), 'phase_peak' (at each phase's peak) "
                                 "or 'timeline'", nullable=False, allowed=("peak", "phase_peak", "timeline")),
        Column("method", "string", "'measured', 'predicted', or 'constructed' from bricks (no longer written)",
               nullable=False, allowed=("measured", "predicted", "constructed")),
        Column("phase", "string", "phase of the snapshot", allowed=PHASES),
        Column("layer", "string", "layer that was running; null outside any layer, and if not recorded"),
        Column("operator", "string", "operator that was running; null outside any operator, and if not recorded"),
        Column("moment", "int64", "index of the snapshot in its timeline, from 0; null except for 'timeline'", least=0),
        Column("time_s", "float64", "time since the iteration's start in the memory pass; null except for a measured "
                                    "'timeline'"),
        Column("category", "string", "one of schema.MEMORY_CATEGORIES; the categories of a snapshot sum to its total",
               nullable=False, allowed=MEMORY_CATEGORIES),
        Column("origin", "string", "origin of estimated bytes, one of schema.MEMORY_ORIGINS; null if measured",
               allowed=MEMORY_ORIGINS),
        Column("bytes", "float64", "bytes allocated by PyTorch's allocator", nullable=False),
        Column("reserved_bytes", "float64", "bytes that PyTorch's allocator had reserved, the same in all rows of a "
                                            "moment; only in imported memory snapshots, null if not known", least=0),
    ),
    "fits": (
        _CASE,
        Column("searched", "string", "quantity whose largest fitting value was searched",
               nullable=False, allowed=("batch_size", "input_size")),
        Column("device", "string", "device whose memory is the limit", nullable=False),
        Column("limit_bytes", "float64", "memory of that device", least=0),
        Column("value", "int64", "largest value that fits; null if not even the smallest does", least=0),
        Column("needed_bytes", "float64", "memory that the device needs for it, estimated, including uncertainty"),
        Column("margin_bytes", "float64", "limit_bytes - needed_bytes"),
        Column("next_value", "int64", "next larger value; null if the search ended before a value did not fit"),
        Column("next_needed_bytes", "float64", "memory that the device needs for the next value, estimated"),
        Column("verified", "string", "'ok' or 'oom' if the value was run under the limit; null if not run",
               allowed=CASE_STATUSES),
        Column("next_verified", "string", "the same for the next value", allowed=CASE_STATUSES),
    ),
    "flop": (
        _CASE,
        Column("phase", "string", "phase in which the operator was dispatched", allowed=PHASES),
        Column("layer", "string", "qualified name of the nn.Module; null outside any module"),
        Column("operator", "string", "dispatched operator, e.g. aten::convolution", nullable=False),
        Column("operator_type", "string", "as in operators", nullable=False),
        Column("num_calls", "int64", "calls per iteration", least=0),
        Column("flop", "float64", "floating-point operations per iteration, counted on fake tensors (1 MAC = 2 FLOP); "
                                  "null if PyTorch has no formula for the operator", least=0),
        Column("bytes", "float64", "bytes of inputs read and outputs written once, modelled", least=0),
    ),
    "layers": (
        _CASE,
        Column("layer", "string", "qualified name of the nn.Module", nullable=False),
        Column("layer_type", "string", "class of the module"),
        Column("num_parameters", "int64", "its own parameters, without its children", least=0),
    ),
    "stages": (
        _CASE,
        Column("stage", "string", "one of schema.STAGES", nullable=False, allowed=STAGES),
        Column("number", "int64", "epoch, from 1; for a load its repetition, from 1; for a prediction 1",
               nullable=False, least=0),
        Column("phase", "string", "one of schema.PHASES; in a load 'build', 'read' or 'place'; the rows of a stage sum "
                                  "to its wall time", nullable=False, allowed=(*PHASES, *LOAD_PHASES)),
        Column("host_s", "float64", "time on the host's clock, measured; a stage ends with a device synchronization",
               nullable=False),
        Column("device_s", "float64", "time between the phases' CUDA events, measured; null on a CPU and if a stage "
                                      "has none"),
        Column("num_iterations", "int64", "iterations of the stage; 0 if it has none", least=0),
        Column("num_samples", "int64", "samples of the stage; 0 if it has none", least=0),
        Column("interval_frac", "float64", "half of the 95 % interval of the mean time of the stage's iterations, as a "
                                           "share of it; null with fewer than 3 iterations, and for loads", least=0),
    ),
    "metrics": (
        _CASE,
        Column("stage", "string", "one of schema.STAGES", nullable=False, allowed=STAGES),
        Column("number", "int64", "as in stages", nullable=False, least=0),
        Column("metric", "string", "loss, accuracy, perplexity, ...", nullable=False),
        Column("value", "float64", "mean over the stage's samples; null if not available",
               most=math.inf),
        Column("reason", "string", "why there is no value; null if there is one"),
    ),
    "problems": (
        _CASE,
        Column("operation", "string", "kind of operation, e.g. gemm", nullable=False),
        Column("problem", "string", "the operation and its sizes, e.g. gemm:3072x128x1024", nullable=False),
        Column("suite", "string", "suite of the problem; null if it was given individually"),
        Column("set", "string", "part of the suite, e.g. training; null if the suite has none"),
        Column("direction", "string", "'forward', 'backward_input' or 'backward_weight'",
               nullable=False, allowed=DIRECTIONS),
        Column("flop", "float64", "floating-point operations of one call, 1 MAC = 2 FLOP; null if not counted",
               least=0),
        Column("published_flop", "float64", "the suite's own count; null if it is the same",
               least=0),
        Column("convention", "string", "how the suite counts or writes sizes, if it differs from charact"),
        Column("bytes", "float64", "inputs read and outputs written once by one call, modelled", least=0),
        Column("sparsity_frac", "float64", "share of zeros in the sparse matrix; null for operations without one",
               least=0),
        Column("layout", "string", "format of the sparse matrix, e.g. csr, or dense; null for operations without one"),
        Column("hot", "string", "'yes' if all calls had the same inputs, which a cache may hold; 'no' if inputs "
                                "were rotated", allowed=("yes", "no")),
        Column("max_error", "float64", "largest difference from the result in float64, over that result's largest "
                                       "magnitude", most=math.inf),
        Column("tolerance", "float64", "largest max_error that the precision allows"),
    ),
    "repetitions": (
        _CASE,
        Column("direction", "string", "as in problems", nullable=False, allowed=DIRECTIONS),
        Column("repetition", "int64", "index of the repetition, from 0; warm-up is not recorded",
               nullable=False, least=0),
        Column("num_calls", "int64", "calls that were timed together", least=0),
        Column("host_s", "float64", "time of one call on the host's clock; on CUDA the time to launch it"),
        Column("device_s", "float64", "time of one call between CUDA events; null on a CPU"),
    ),
    "bricks": (
        _CASE,
        Column("brick", "string", "identifier of the brick, a hash of what it computes", nullable=False),
        Column("kind", "string", "'sequence', 'update' (an optimizer's step for a parameter) or 'gradient_sum'",
               nullable=False, allowed=("sequence", "update", "gradient_sum")),
        Column("num_layers", "int64", "operators that it calls; null if it could not be read", least=0),
        Column("layer_types", "string", 'types of its layers as JSON, e.g. ["conv2d", "relu"]; null if not read',
               json=list[str]),
        Column("input_shapes", "string", "shapes of its inputs as JSON; null if not read", json=list[list[int]]),
        Column("literals", "string", "numeric arguments of its operators as JSON; null in older records",
               json=list[Any]),
        Column("status", "string", "'ok', 'oom', 'error', 'left_out' if its time is predicted, or 'running' if the run "
                                   "ended before its outcome was recorded",
               nullable=False, allowed=("ok", "oom", "error", LEFT_OUT, "running", "interrupted")),
        Column("reason", "string", "why it has no time; null if it has one"),
        Column("flop", "float64", "floating-point operations of one call, in training with its backward pass; null "
                                  "if not counted", least=0),
        Column("bytes", "float64", "bytes of inputs read and outputs written once by its operators, in training with "
                                   "its backward pass; modelled", least=0),
        Column("weights_bytes", "float64", "bytes of the weights and buffers that it reads"),
        Column("outputs_bytes", "float64", "bytes of its outputs; no longer written"),
        Column("saved_bytes", "float64", "bytes saved from forward to backward; no longer written"),
        Column("peak_bytes", "float64", "peak memory in addition to inputs; no longer written"),
        Column("held", "string", "what its forward pass saves and returns, as JSON; no longer written"),
        Column("num_rounds", "int64", "rounds in which it was timed", least=0),
        Column("set_up_s", "float64", "untimed setup: inputs, weights, untimed calls"),
    ),
    "brick_times": (
        _CASE,
        Column("brick", "string", "as in bricks", nullable=False),
        Column("phase", "string", "'forward' (also for a sum of gradients), 'backward' or 'update'",
               nullable=False, allowed=("forward", "backward", "update")),
        Column("round", "int64", "index of the round over all bricks, from 0; for warm times, of the repetition",
               nullable=False, least=0),
        Column("call", "int64", "index of the call in the brick's visit of that round, from 0, without untimed ones",
               nullable=False, least=0),
        Column("num_calls", "int64", "calls, or parameters updated, that were timed together", least=0),
        Column("host_s", "float64", "time of one call on the host's clock; for a backward pass including the start of "
                                    "autograd; for an update the time for one parameter"),
        Column("device_s", "float64", "the same between CUDA events; null on a CPU"),
    ),
    "pieces": (
        _CASE,
        Column("piece", "int64", "index of the segment in the model, from 0; null for updates and sums of gradients, "
                                 "which share a row if they are equal", least=0),
        Column("brick", "string", "identifier of the segment's brick", nullable=False),
        Column("num_layers", "int64", "layers of the brick; null if the suite's run lacks it", least=0),
        Column("layer_types", "string", 'types of its layers as JSON, e.g. ["conv2d", "relu"]; null if not available',
               json=list[str]),
        Column("phase", "string", "'forward', 'backward' or 'update'",
               nullable=False, allowed=("forward", "backward", "update")),
        Column("time_s", "float64", "median of the brick's times over all its uses here; for a backward pass without "
                                    "the start of autograd; null if the brick has no time"),
        Column("num_uses_here", "int64", "uses that the row covers: 1 for a segment", least=0),
        Column("method", "string", "'measured', or 'predicted' from the times of other bricks; null if the brick "
                                    "has no time, and in older records", allowed=("measured", "predicted")),
    ),
    "constructions": (
        _CASE,
        Column("strategy", "string", "one of schema.STRATEGIES", nullable=False, allowed=STRATEGIES),
        Column("phase", "string", "'forward' (with the loss), 'backward', 'update', or 'all' for the whole iteration",
               nullable=False, allowed=("forward", "backward", "update", "all")),
        Column("latency_s", "float64", "constructed from the times of bricks"),
        Column("low_s", "float64", "95 % interval of the latency, from resampled rounds; null below 6 rounds"),
        Column("high_s", "float64", "its upper end"),
        Column("reason", "string", "why there is no latency; null if there is one"),
    ),
    "counters": (
        _CASE,
        Column("phase", "string", "phase of the value; null if it covers the whole pass", allowed=PHASES),
        Column("time_s", "float64", "time of the sample since the pass began; null for a value over the whole pass"),
        Column("rank", "int64", "rank of the process"),
        Column("device", "string", "device of the value"),
        Column("source", "string", "counter source, e.g. host", nullable=False),
        Column("kernel", "string", "kernel of the value; null if it covers everything that ran"),
        Column("counter", "string", "name, ending in its unit", nullable=False),
        Column("value", "float64", "value in the unit of its name"),
    ),
}

UNIQUE: dict[str, tuple[str, ...]] = {
    "iterations": ("case", "iteration", "phase", "part"),
    "program_iterations": ("case", "index"),
    "windows": ("case", "window", "phase"),
    "stages": ("case", "stage", "number", "phase"),
    "metrics": ("case", "stage", "number", "metric"),
    "problems": ("case", "direction"),
    "repetitions": ("case", "direction", "repetition"),
    "layers": ("case", "layer"),
    "serving_steps": ("case", "step"),
    "bricks": ("case", "brick"),
    "constructions": ("case", "strategy", "phase"),
}
"""Columns whose combined values are unique within a table."""

ADDED_COLUMNS: dict[str, frozenset[str]] = {
    "bricks": frozenset({"held", "literals", "outputs_bytes", "peak_bytes", "saved_bytes"}),
    "pieces": frozenset({"method"}),
    "counters": frozenset({"kernel"}),
    "iterations": frozenset({"part"}),
    "operators": frozenset({"dtype"}),
    "stages": frozenset({"interval_frac"}),
    "program_iterations": frozenset({"context"}),
    "memory": frozenset({"layer", "operator", "moment", "origin", "reserved_bytes"}),
}
"""Nullable columns that older records of this version lack: they are read as null."""


def column_names(table: str) -> list[str]:
    """Return the names of a table's columns, in order."""
    return [column.name for column in TABLES[table]]
