"""The record's contract: its version, its words, and the columns of its tables.

Tools outside charact read these files. Adding a nullable column keeps the version; anything else raises it, and
`charact.record.reader` then upgrades older records or refuses them.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

SCHEMA_VERSION = 1

PHASES = ("data", "forward", "loss", "backward", "update", "communication", "other")
"""Phases of an iteration, in order. They never overlap; with `other` they sum to the iteration's wall time."""

LOAD_PHASES = ("build", "read", "place")
"""Phases of a load: making the model, reading the file, putting the weights onto the device."""

MEMORY_CATEGORIES = ("weights", "gradients", "optimizer_state", "activations", "temporary", "input", "unknown")

MEMORY_ORIGINS = ("tensors", "workspaces", "rounding")
"""What predicted bytes are of: tensors, which are exact; what operators allocate for themselves and give back, which is
calibrated or modelled; what the device's allocator adds to each block."""

MODES = ("train", "infer")

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "pure-bf16")

OPERATION_PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "int8")
"""Of basic operations, whose inputs all have the type that is named."""

DIRECTIONS = ("forward", "backward_input", "backward_weight")
"""Of basic operations."""

STRATEGIES = ("sequential", "critical_path", "corrected", "paper")
"""How a model's latency is constructed from bricks: the sum of their times; the longest way through the model's graph;
the sum, corrected as other models taught; the sum of times that were taken warm, as the paper does."""

STAGES = ("training", "validation", "checkpointing", "load_cold", "load_warm", "prediction")
"""What a training or an inference spends its total time on."""

DAMAGED = "damaged"
"""Status that a reader gives to a case whose facts in run.json it cannot use; only a recovered run holds it."""

CASE_STATUSES = ("ok", "oom", "diverged", "error", "interrupted", "running", DAMAGED)
"""`diverged`: the loss was no number any more. `running` stands in the record of a run that was killed."""

UNFINISHED = ("running", "interrupted")
"""Statuses of a case that can be resumed."""
RUN_STATUSES = ("complete", "interrupted", "running")
PASS_STATUSES = ("ok", "failed", "skipped")

LEFT_OUT = "left_out"
"""Status of a brick that was not timed, for its time to be predicted."""

ColumnType = Literal["string", "int64", "float64"]

LARGEST = {"int64": 2.0**53, "float64": 1e30}
"""Largest magnitude of a number. pandas holds an integer column with nulls as floats, which are exact up to 2^53; sums
and squares of floats up to 1e30 stay finite."""


@dataclass(frozen=True)
class Column:
    """A column: its name ends in its unit, its description says what a null means where nulls occur.

    Numbers are finite. The other fields say which values there may be; readers refuse a table that holds others.
    """

    name: str
    type: ColumnType
    description: str
    nullable: bool = True
    allowed: tuple[str, ...] | None = None
    """All values that a text may have."""
    least: float | None = None
    """Smallest value of a number."""
    most: float | None = None
    """Largest value of a number; by default that of `LARGEST`."""
    json: Any = None
    """Type of the value that a text holds as JSON, for `msgspec`."""


class HeldOutput(TypedDict):
    """Memory of an output of a brick, in the column `held`."""

    bytes: float
    input: int | None
    saved: bool
    gradient: bool


class Held(TypedDict):
    """What a brick's forward pass saves and gives, in the column `held`."""

    saved_inputs: list[int]
    outputs: list[HeldOutput]


_CASE = Column("case", "string", "identifier of the case, as in run.json", nullable=False)

TABLES: dict[str, tuple[Column, ...]] = {
    "iterations": (
        _CASE,
        Column("iteration", "int64", "number of the timed iteration, from 0; warm-up is not recorded",
               nullable=False, least=0),
        Column("phase", "string", "one of schema.PHASES; the rows of an iteration sum to its wall time",
               nullable=False, allowed=PHASES),
        Column("part", "string", "model or optimizer that the phase belongs to; null where the program has one"),
        Column("host_s", "float64", "time between the phase's marks on the host's clock, measured", nullable=False),
        Column("device_s", "float64", "time between the phase's CUDA events, measured; null on a CPU"),
    ),
    "operators": (
        _CASE,
        Column("phase", "string", "phase in which the operator ran", allowed=PHASES),
        Column("operator", "string", "name as PyTorch gives it, e.g. aten::mkldnn_convolution", nullable=False),
        Column("operator_type", "string", "convolution, GEMM, normalization, ...; 'other' where no rule knows it",
               nullable=False),
        Column("layer", "string", "qualified name of the nn.Module; a backward operator's is that of its forward "
                                  "operator; null outside of any module"),
        Column("input_shapes", "string", "shapes of the tensor inputs as JSON, e.g. [[8,3,224,224],[64,3,7,7]]",
               json=list[Any]),
        Column("num_calls", "float64", "calls per iteration, mean over the pass", least=0),
        Column("self_host_s", "float64", "host time per iteration without nested operators, measured under the "
                                         "profiler, which slows it"),
        Column("device_s", "float64", "time of the kernels it launched itself, per iteration; null on a CPU"),
        Column("flop", "float64", "floating-point operations per iteration, counted on fake tensors; null where not "
                                  "counted; stands on the row that holds the time of its layer and operator type",
               least=0),
        Column("bytes", "float64", "bytes of inputs read and outputs written once per iteration, modelled on fake "
                                   "tensors; placed like flop", least=0),
    ),
    "kernels": (
        _CASE,
        Column("phase", "string", "phase in which the operator that launched it ran", allowed=PHASES),
        Column("operator", "string", "operator that launched it; null where the trace does not tell"),
        Column("kernel", "string", "name of the kernel, copy or fill as it ran on the device", nullable=False),
        Column("num_calls", "float64", "launches per iteration, mean over the pass", least=0),
        Column("device_s", "float64", "device time per iteration, measured"),
        Column("grid", "string", "grid dimensions as JSON; null for copies and fills", json=list[Any]),
        Column("block", "string", "block dimensions as JSON; null for copies and fills", json=list[Any]),
        Column("registers", "int64", "registers per thread; null for copies and fills"),
        Column("shared_memory_bytes", "int64", "shared memory per block; null for copies and fills"),
        Column("occupancy_frac", "float64", "estimated achieved occupancy (from launch geometry, not a counter)"),
    ),
    "memory": (
        _CASE,
        Column("kind", "string", "'peak' (composition at the iteration's peak), 'phase_peak' (at each phase's peak) "
                                 "or 'timeline'", nullable=False, allowed=("peak", "phase_peak", "timeline")),
        Column("method", "string", "'measured', 'predicted', or 'constructed' from bricks",
               nullable=False, allowed=("measured", "predicted", "constructed")),
        Column("phase", "string", "phase in which the moment lies", allowed=PHASES),
        Column("layer", "string", "layer that was running at the moment; null outside of any, and where not told"),
        Column("operator", "string", "operator that was running; null outside of any, and where not told"),
        Column("moment", "int64", "number of the moment in its timeline, from 0; null but for 'timeline'", least=0),
        Column("time_s", "float64", "time since the iteration's start in the memory pass; null but for a measured "
                                    "'timeline'"),
        Column("category", "string", "one of schema.MEMORY_CATEGORIES; the categories of a moment sum to its total",
               nullable=False, allowed=MEMORY_CATEGORIES),
        Column("origin", "string", "what a predicted row is of, one of schema.MEMORY_ORIGINS; null where measured",
               allowed=MEMORY_ORIGINS),
        Column("bytes", "float64", "bytes held through PyTorch's allocator", nullable=False),
    ),
    "fits": (
        _CASE,
        Column("searched", "string", "'batch_size' or 'input_size': what the largest fitting value was looked for of",
               nullable=False, allowed=("batch_size", "input_size")),
        Column("device", "string", "whose memory it is to fit", nullable=False),
        Column("limit_bytes", "float64", "memory of that device", least=0),
        Column("value", "int64", "largest value that fits; null where not even the smallest does", least=0),
        Column("needed_bytes", "float64", "what the device must have for it, predicted, uncertainty included"),
        Column("margin_bytes", "float64", "limit less that"),
        Column("next_value", "int64", "next larger value; null where the search ended before one did not fit"),
        Column("next_needed_bytes", "float64", "what the device must have for that, predicted"),
        Column("verified", "string", "'ok' or 'oom' where the value was run under the limit; null where it was not",
               allowed=CASE_STATUSES),
        Column("next_verified", "string", "the same of the next value", allowed=CASE_STATUSES),
    ),
    "flop": (
        _CASE,
        Column("phase", "string", "phase in which the operator was dispatched", allowed=PHASES),
        Column("layer", "string", "qualified name of the nn.Module; null outside of any module"),
        Column("operator", "string", "dispatched operator, e.g. aten::convolution", nullable=False),
        Column("operator_type", "string", "as in operators", nullable=False),
        Column("num_calls", "int64", "calls per iteration", least=0),
        Column("flop", "float64", "floating-point operations per iteration, counted on fake tensors (1 MAC = 2 FLOP); "
                                  "null where PyTorch has no formula for the operator", least=0),
        Column("bytes", "float64", "bytes of inputs read and outputs written once, modelled", least=0),
    ),
    "layers": (
        _CASE,
        Column("layer", "string", "qualified name of the nn.Module", nullable=False),
        Column("layer_type", "string", "class of the module"),
        Column("num_parameters", "int64", "parameters it holds itself, without its children", least=0),
    ),
    "stages": (
        _CASE,
        Column("stage", "string", "one of schema.STAGES", nullable=False, allowed=STAGES),
        Column("number", "int64", "epoch, from 1; of a load its repetition, from 1; of a prediction 1",
               nullable=False, least=0),
        Column("phase", "string", "one of schema.PHASES; in a load 'build', 'read' or 'place'; the rows of a stage sum "
                                  "to its wall time", nullable=False, allowed=(*PHASES, *LOAD_PHASES)),
        Column("host_s", "float64", "time on the host's clock, measured; a stage ends when the device has",
               nullable=False),
        Column("device_s", "float64", "time between the phases' CUDA events, measured; null on a CPU and where a stage "
                                      "has none"),
        Column("num_iterations", "int64", "iterations of the stage; 0 where it has none", least=0),
        Column("num_samples", "int64", "samples of the stage; 0 where it has none", least=0),
    ),
    "metrics": (
        _CASE,
        Column("stage", "string", "one of schema.STAGES", nullable=False, allowed=STAGES),
        Column("number", "int64", "as in stages", nullable=False, least=0),
        Column("metric", "string", "loss, accuracy, perplexity, ...", nullable=False),
        Column("value", "float64", "mean over the stage's samples; null where it could not be told",
               most=math.inf),
        Column("reason", "string", "why there is no value; null where there is one"),
    ),
    "problems": (
        _CASE,
        Column("operation", "string", "kind of operation, e.g. gemm", nullable=False),
        Column("problem", "string", "the operation and its sizes, e.g. gemm:3072x128x1024", nullable=False),
        Column("suite", "string", "suite that it was taken from; null where it was named by itself"),
        Column("set", "string", "part of the suite, e.g. training; null where the suite has none"),
        Column("direction", "string", "'forward', 'backward_input' or 'backward_weight'",
               nullable=False, allowed=DIRECTIONS),
        Column("flop", "float64", "floating-point operations of one call, 1 MAC = 2 FLOP; null where none are counted",
               least=0),
        Column("published_flop", "float64", "what the suite counts in its place; null where it counts the same",
               least=0),
        Column("convention", "string", "how the suite counts, or writes sizes, where that is otherwise than here"),
        Column("bytes", "float64", "inputs read and outputs written once by one call, modelled", least=0),
        Column("sparsity_frac", "float64", "share of zeros in the sparse matrix; null of operations without one",
               least=0),
        Column("layout", "string", "how the sparse matrix is kept, e.g. csr, or dense; null of operations without one"),
        Column("hot", "string", "'yes' where all calls had the same inputs, which a cache may hold; 'no' where inputs "
                                "were rotated", allowed=("yes", "no")),
        Column("max_error", "float64", "largest difference from the result in float64, over that result's largest "
                                       "magnitude", most=math.inf),
        Column("tolerance", "float64", "what the precision allows of it"),
    ),
    "repetitions": (
        _CASE,
        Column("direction", "string", "as in problems", nullable=False, allowed=DIRECTIONS),
        Column("repetition", "int64", "number of the repetition, from 0; warm-up is not recorded",
               nullable=False, least=0),
        Column("num_calls", "int64", "calls that were timed together", least=0),
        Column("host_s", "float64", "time of one call on the host's clock; on CUDA what calling it took"),
        Column("device_s", "float64", "time of one call between CUDA events; null on a CPU"),
    ),
    "bricks": (
        _CASE,
        Column("brick", "string", "identifier of the brick, a hash of what it computes", nullable=False),
        Column("kind", "string", "'sequence', 'update' (an optimizer's step for a parameter) or 'gradient_sum'",
               nullable=False, allowed=("sequence", "update", "gradient_sum")),
        Column("num_layers", "int64", "operators that it calls; null where it could not be read", least=0),
        Column("layer_types", "string", 'types of its layers as JSON, e.g. ["conv2d", "relu"]; null likewise',
               json=list[str]),
        Column("input_shapes", "string", "shapes of its inputs as JSON; null likewise", json=list[list[int]]),
        Column("literals", "string", "numbers among its operators' arguments as JSON; null in older records",
               json=list[Any]),
        Column("status", "string", "'ok', 'oom', 'error', 'left_out' of one whose time is to be predicted, or "
                                   "'running' where the run ended before it was told",
               nullable=False, allowed=("ok", "oom", "error", LEFT_OUT, "running", "interrupted")),
        Column("reason", "string", "why it has no time; null where it has one"),
        Column("flop", "float64", "floating-point operations of one call, in training with its backward pass; null "
                                  "where none are counted", least=0),
        Column("bytes", "float64", "bytes of inputs read and outputs written once by its operators, likewise; "
                                   "modelled", least=0),
        Column("weights_bytes", "float64", "bytes of the weights and buffers that it reads"),
        Column("outputs_bytes", "float64", "bytes that its outputs take beside its inputs; null where not measured"),
        Column("saved_bytes", "float64", "bytes held from forward to backward beside inputs and outputs; of an update "
                                         "what the optimizer keeps for the parameter; null of what has neither"),
        Column("peak_bytes", "float64", "most that is held at once beside inputs, in training with outputs' "
                                        "gradients, measured; of an update by the step"),
        Column("held", "string", 'in training, what its forward pass saves and gives, as JSON: {"saved_inputs": '
                                 '[numbers of inputs], "outputs": [{"bytes", "input" (whose memory it shares, or '
                                 'null), "saved", "gradient" (whether it carries one)}]}; null where not measured',
               json=Held),
        Column("num_rounds", "int64", "rounds that it has times of", least=0),
        Column("set_up_s", "float64", "time spent on it beside what is timed: inputs, weights, untimed calls"),
    ),
    "brick_times": (
        _CASE,
        Column("brick", "string", "as in bricks", nullable=False),
        Column("phase", "string", "'forward' (also of a sum of gradients), 'backward' or 'update'",
               nullable=False, allowed=("forward", "backward", "update")),
        Column("round", "int64", "number of the round over all bricks, from 0; of warm times, of the repetition",
               nullable=False, least=0),
        Column("call", "int64", "number of the call in the brick's visit of that round, from 0; untimed ones are left "
                                "out", nullable=False, least=0),
        Column("num_calls", "int64", "calls, or parameters updated, that were timed together", least=0),
        Column("host_s", "float64", "time of one call on the host's clock; of a backward pass with what starting one "
                                    "takes; of an update the time for one parameter"),
        Column("device_s", "float64", "the same between CUDA events; null on a CPU"),
    ),
    "pieces": (
        _CASE,
        Column("piece", "int64", "number of the piece in the model, from 0; null of updates and sums of gradients, "
                                 "of which those that are alike share a row", least=0),
        Column("brick", "string", "identifier of the brick that stands there", nullable=False),
        Column("num_layers", "int64", "layers of the brick; null where the suite's run does not hold it", least=0),
        Column("layer_types", "string", 'types of its layers as JSON, e.g. ["conv2d", "relu"]; null where not told',
               json=list[str]),
        Column("phase", "string", "'forward', 'backward' or 'update'",
               nullable=False, allowed=("forward", "backward", "update")),
        Column("time_s", "float64", "median of the brick's times, of all its uses here; of a backward pass without "
                                    "what starting one takes; null where the brick has no time"),
        Column("num_uses_here", "int64", "uses that the row stands for: 1 of a piece", least=0),
        Column("method", "string", "'measured', or 'predicted' from the times of other bricks; null where the brick "
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
        Column("reason", "string", "why there is no latency; null where there is one"),
    ),
    "counters": (
        _CASE,
        Column("phase", "string", "phase it belongs to; null where it covers the whole pass", allowed=PHASES),
        Column("time_s", "float64", "time of the sample since the pass began; null for a value over the whole pass"),
        Column("rank", "int64", "rank of the process"),
        Column("device", "string", "device it was read from"),
        Column("source", "string", "counter source, e.g. host", nullable=False),
        Column("kernel", "string", "kernel it belongs to; null where it covers all that ran"),
        Column("counter", "string", "name, ending in its unit", nullable=False),
        Column("value", "float64", "value in the unit of its name"),
    ),
}

UNIQUE: dict[str, tuple[str, ...]] = {
    "iterations": ("case", "iteration", "phase", "part"),
    "stages": ("case", "stage", "number", "phase"),
    "metrics": ("case", "stage", "number", "metric"),
    "problems": ("case", "direction"),
    "repetitions": ("case", "direction", "repetition"),
    "layers": ("case", "layer"),
    "bricks": ("case", "brick"),
    "constructions": ("case", "strategy", "phase"),
}
"""Columns whose values together occur in one row of a table only."""

ADDED_COLUMNS: dict[str, frozenset[str]] = {
    "bricks": frozenset({"held", "literals"}),
    "pieces": frozenset({"method"}),
    "counters": frozenset({"kernel"}),
    "iterations": frozenset({"part"}),
    "memory": frozenset({"layer", "operator", "moment", "origin"}),
}
"""Nullable columns that the first records of this version lack: there they are read as null."""


def column_names(table: str) -> list[str]:
    """Names of a table's columns, in order."""
    return [column.name for column in TABLES[table]]
