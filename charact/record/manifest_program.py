"""Types of the numbers and names in run.json, and of the time and the settings of a whole watched program."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from charact.core.units import quantity
from charact.record.schema import MEMORY_CATEGORIES, MOST_RANKS, PHASES

Count = Annotated[int, Meta(ge=0, le=2**53)]
RankCount = Annotated[int, Meta(ge=0, le=MOST_RANKS)]
Amount = Annotated[float, Meta(ge=0, le=1e30)]
Share = Annotated[float, Meta(ge=0, le=1)]
Number = Annotated[float, Meta(ge=-1e30, le=1e30)]
Device = Annotated[str, Meta(pattern=r"^(n/a|[a-z_]{1,20}(:[0-9]{1,4})?)\Z")]
Phase = Literal[PHASES]  # type: ignore[valid-type]
Category = Literal[MEMORY_CATEGORIES]  # type: ignore[valid-type]


class OwnTime(Struct):
    """Time (s) that charact itself took in the program: to start, and in its passes.

    `passes`: their time without that of as many median iterations.
    """

    start: Amount | None = None
    passes: Amount | None = None


class Threads(Struct):
    """PyTorch's numbers of threads at the program's end, and the cores that the process may use."""

    intra_op: Count | None = None
    inter_op: Count | None = None
    num_usable_cores: Count | None = None


class ModelSettings(Struct):
    """An outermost model.

    `dtypes`: number of floating-point elements of its parameters and buffers, by type. `channels_last`: whether the
    weights of its convolutions have this memory format; None without convolutions. `num_hooks_first`,
    `num_hooks_last`: forward and backward hooks of all its modules at its first call and at the end;
    `num_modules_first`, `num_modules_last`: modules. `parallel`: class of the wrapper, such as
    DistributedDataParallel. `calls`: outermost calls. `inference_with_grad`: those of them in eval mode and with
    gradients that no backward followed. `num_frozen_rows`: rows (samples) of its inputs in calls without
    gradients, while its weights did not change. `num_repeated_rows`: those that an earlier of these calls had, too.
    """

    name: str | None = None
    class_: str | None = field(name="class", default=None)
    num_parameters: Count | None = None
    dtypes: dict[str, Count] = {}
    num_convolutions: Count | None = None
    channels_last: bool | None = None
    num_hooks_first: Count | None = None
    num_hooks_last: Count | None = None
    num_modules_first: Count | None = None
    num_modules_last: Count | None = None
    parallel: str | None = None
    find_unused_parameters: bool | None = None
    calls: Count | None = None
    inference_with_grad: Count | None = None
    num_frozen_rows: Count | None = None
    num_repeated_rows: Count | None = None


class OptimizerSettings(Struct):
    """An optimizer; `file` and `line` are where the program's own code created it.

    `implementation`: "for-loop", "foreach" or "fused"; None if unknown. `models`: names of the models it updates.
    """

    name: str | None = None
    class_: str | None = field(name="class", default=None)
    implementation: str | None = None
    num_tensors: Count | None = None
    num_groups: Count | None = None
    num_parameters: Count | None = None
    device: str | None = None
    file: str | None = None
    line: Count | None = None
    models: list[str] = []


class LoaderSettings(Struct):
    """A `DataLoader`, or all that the same line creates alike, in the order of their first use.

    `in_memory`: whether the dataset is a list, a tensor or an array; None if unknown. `num_iterators`: how often it was
    started. `start_s`: time of each start, of the first 50, until its first batch. `wait_s`: time that the program
    waited for batches. `worker_fetch_s`: time in which its workers fetched and collated; None if unknown. `file` and
    `line`: where the program's own code created it.
    """

    class_: str | None = field(name="class", default=None)
    dataset: str | None = None
    in_memory: bool | None = None
    num_items: Count | None = None
    batch_size: Count | None = None
    num_workers: Count | None = None
    persistent_workers: bool | None = None
    prefetch_factor: Count | None = None
    pin_memory: bool | None = None
    multiprocessing_context: str | None = None
    num_iterators: Count | None = None
    start_s: list[Amount] = []
    num_batches: Count | None = None
    wait_s: Amount | None = None
    worker_fetch_s: Amount | None = None
    file: str | None = None
    line: Count | None = None


class CompileEvent(Struct):
    """A graph break, or recompilations for one reason.

    `line` breaks the graph, or reads what has changed; `text` is its source code. If PyTorch does not name it, `line`
    is the first one of the compiled function, and `text` None. `num_times`: recompilations, or compilations that ended
    at the break.
    """

    kind: Literal["graph break", "recompilation"]
    reason: str
    file: str | None = None
    line: Count | None = None
    text: str | None = None
    num_times: Count = 1


class Compilations(Struct):
    """Compilations by torch.compile: graphs, lines that break them, recompilations, and at most 20 events.

    *Error*: PyTorch keeps its last 64 compilations, so there may be more recompilations.
    """

    num_graphs: Count | None = None
    num_graph_breaks: Count | None = None
    num_recompilations: Count | None = None
    events: list[CompileEvent] = []


class CallingPlace(Struct):
    """Line of the program's code that made a call; None if it is not known."""

    file: str | None
    line: Count | None


class ProgramSettings(Struct):
    """What a program chose that affects its speed.

    `anomaly_frac`: share of the backwards that ran under anomaly detection; None without backwards.
    `num_backwards`: of the whole program. `create_graph`: line of the first backward with `create_graph=True`.
    """

    threads: Threads | None = None
    anomaly_frac: Share | None = None
    num_backwards: Count | None = None
    create_graph: CallingPlace | None = None
    deterministic: bool | None = None
    matmul_precision: str | None = None
    cudnn_benchmark: bool | None = None
    cudnn_tf32: bool | None = None
    matmul_tf32: bool | None = None
    models: list[ModelSettings] = []
    optimizers: list[OptimizerSettings] = []
    loaders: list[LoaderSettings] = []
    compile: Compilations | None = None


class MemoryHolder(Struct, kw_only=True):
    """Tensors in memory: those of a layer, or others of one shape and type, which a variable may hold."""

    category: Literal["weights", "gradients", "optimizer_state", "tensors"]
    bytes: Amount
    num_tensors: Count
    layer: str | None = None
    shape: list[Count] | None = None
    variable: str | None = None

    def __str__(self) -> str:
        size = quantity(self.bytes, "B")
        if self.layer is not None:
            return f"{self.category.replace('_', ' ')} of {self.layer} {size}"
        where = f" in {self.variable}" if self.variable else ""
        return f"{self.num_tensors:,} tensor{'' if self.num_tensors == 1 else 's'} of shape {self.shape}{where} {size}"


class OutOfMemory(Struct, kw_only=True):
    """Where a program ended because memory ran out: line and layer, None if not known, and the largest holders."""

    reason: str
    requested_bytes: Amount | None = None
    layer: str | None = None
    file: str | None = None
    line: Count | None = None
    text: str | None = None
    holders: list[MemoryHolder] = []

    def __str__(self) -> str:
        place = f" at {self.file}:{self.line}" if self.file else ""
        layer = f", in layer {self.layer}" if self.layer else ""
        asked = f", when {quantity(self.requested_bytes, 'B')} were requested" if self.requested_bytes else ""
        held = f"; the largest holders were {', '.join(map(str, self.holders))}" if self.holders else ""
        return f"memory ran out{place}{layer}{asked}{held}"


class ProgramFacts(Struct):
    """Time of a whole profiled program: all, before the first iteration, between iterations and after the last one.

    The time of charact's passes is left out: an iteration that they measured counts as long as the median one.

    Times are unknown if the program was not recorded to its end. `process_peak_bytes`: largest resident set of the
    process, without that of charact's passes.
    """

    duration_s: Amount | None = None
    before_s: Amount | None = None
    between_s: Amount | None = None
    after_s: Amount | None = None
    process_peak_bytes: Amount | None = None
    own_s: OwnTime | None = None
    """Time of charact itself, which the other times leave out but for the start."""
    settings: ProgramSettings | None = None
    out_of_memory: OutOfMemory | None = None
    """None if the program did not end because memory ran out."""
