"""Types of the passes of run.json."""

from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct

from charact.record.manifest_program import Amount, Compilations, Count, Number, Phase, ProgramFacts, Share
from charact.record.schema import PASS_STATUSES, SAMPLED_PHASES

# Fields have defaults, and unknown fields are allowed, so that an older charact can read newer records.

class Facts(Struct, omit_defaults=True):
    """Facts of run.json; those with their default are not written."""

    def update(self, **facts: Any) -> None:
        """Set facts by name."""
        for name, value in facts.items():
            setattr(self, name, value)


class DroppedItems(Struct):
    """Items of a trace that were not imported."""

    what: str
    reason: str
    num_dropped: Count


class Pass(Facts):
    """Facts that all passes may record."""

    status: Literal[PASS_STATUSES] | None = None  # type: ignore[valid-type]
    """None if the case has not taken the pass."""
    reason: str | None = None
    compile_s: Amount | None = None
    dropped: list[DroppedItems] = []
    iterations: list[Count] = []
    """Indices of the iterations of a profiled program that the pass measured, from 0 for its first."""


class CoreUse(Struct):
    """Processor time of a process, its children and other programs over an interval; see `machine.core_use`."""

    length_s: Amount
    num_usable_cores: Count
    processor_s: Amount
    others_s: Amount
    waiting_s: Amount | None = None
    stolen_s: Amount | None = None
    num_involuntary_switches: Amount | None = None

    @property
    def lost_frac(self) -> float | None:
        """Share of the wanted processor time that other programs or machines took; None if waiting was not counted.

        Of the waiting, at most the time that other programs used counts as lost: threads also wait for each other.
        """
        if self.waiting_s is None:
            return None
        # The host of a virtual machine steals from all programs alike.
        stolen_s = (self.stolen_s or 0.0) * self.processor_s / max(self.processor_s + self.others_s, 1e-9)
        lost_s = min(self.waiting_s, self.others_s) + stolen_s
        return lost_s / max(self.processor_s + lost_s, 1e-9)


UNRELIABLE_FRAC = 0.25
"""`lost_frac` from which a case gets no verdict; `benchmarks/busy_machine.py` counts false verdicts."""


class TimingPass(Pass):
    """Facts of the pass `timing`."""

    num_warmup_iterations: Count | None = None
    num_pass_iterations: Count | None = None
    """Iterations of a profiled program that other passes measured."""
    num_window_iterations: Count | None = None
    """Iterations of a profiled program after its event log was full, which are only in the table `windows`."""
    window_s: Amount | None = None
    """Their time."""
    program: ProgramFacts | None = None
    warmup_ended_by: str | None = None
    num_iterations: Count | None = None
    num_samples: Count | None = None
    """Samples that the timed iterations fetched in all."""
    num_tokens: Count | None = None
    """Tokens of text that the model read in all timed iterations, without padding; None if it reads no text."""
    num_padding: Count | None = None
    """Positions of padding that it read with them; None if it is not known what is padding."""
    ended_by: str | None = None
    precision_target_frac: Amount | None = None
    interval_frac: Amount | None = None
    median_s: Number | None = None
    attributed_frac: Number | None = None
    inferred_frac: Number | None = None
    blind_spots: list[str] = []
    evidence: dict[Phase, list[str]] = {}
    num_loader_workers: Count | None = None
    num_threads: Count | None = None
    """Threads inside an operator, of a rank."""
    compilations: Compilations | None = None
    """Of a model that charact compiled; those of a program are in its settings."""
    on_core_frac: Amount | None = None
    """Share of its time in which the thread of a whole model was on a core."""
    own_marks: bool | None = None
    """Whether a trace has charact's own annotations of phases."""
    core_use: CoreUse | None = None


class OperatorsPass(Pass):
    """Facts of the pass `operators`."""

    num_iterations: Count | None = None
    num_counted_iterations: Count | None = None
    """Those without the iterations that something disturbed."""
    iteration_s: Amount | None = None
    phase_s: dict[Phase, Number] = {}
    overhead_ratio: Amount | None = None
    kernel_layers: bool | None = None
    """Whether PyTorch keeps the origins of compiled kernels, which give their layers; None if nothing is compiled."""


class MemoryPass(Pass):
    """Facts of the pass `memory`."""

    peak_bytes: Amount | None = None
    allocator_peak_bytes: Amount | None = None
    reserved_peak_bytes: Amount | None = None
    process_before_bytes: Amount | None = None
    process_peak_bytes: Amount | None = None
    phase_peak_bytes: dict[Phase, Amount] = {}


class Holder(Struct, kw_only=True, omit_defaults=True):
    """Blocks that a line of a program allocated; `reason` if the line is not known."""

    place: str | None = None
    function: str | None = None
    reason: str | None = None
    bytes: Amount
    num_blocks: Count


class AllocatorPool(Struct, kw_only=True):
    """Segments of a stream and memory pool when a snapshot was taken, and the states of their blocks."""

    stream: str
    pool: str
    num_segments: Count
    reserved_bytes: Amount
    num_blocks: Count
    """Allocated blocks."""
    allocated_bytes: Amount
    """Sizes of allocated blocks, rounded by the allocator."""
    requested_bytes: Amount | None = None
    """Sizes that the program requested for them; None if the snapshot lacks them."""
    awaiting_free_bytes: Amount
    inactive_bytes: Amount
    largest_inactive_bytes: Amount


class OutOfMemoryEvent(Struct, kw_only=True):
    """A request that the allocator could not fulfil; time since the first event, or its number without times."""

    time_s: Amount | None = None
    event: Count
    requested_bytes: Amount
    free_bytes: Amount | None = None
    allocated_bytes: Amount
    reserved_bytes: Amount | None = None
    place: str | None = None
    function: str | None = None
    holders: list[Holder] = []


class SnapshotPass(Pass):
    """Facts of a memory snapshot of PyTorch's allocator: its state, and the replay of its history."""

    device_index: Count | None = None
    settings: str | None = None
    pools: list[AllocatorPool] = []
    history_reason: str | None = None
    """Why there is no curve and no peak."""
    num_events: Count = 0
    duration_s: Amount | None = None
    peak_s: Amount | None = None
    """Time of the peak since the first event; `peak_event`: number of the event, from 1; 0 is before the first one."""
    peak_event: Count | None = None
    reserved_at_peak_bytes: Amount | None = None
    reserved_reason: str | None = None
    before_bytes: Amount = 0.0
    """Of blocks that were allocated before the history."""
    num_before: Count = 0
    before_at_peak_bytes: Amount = 0.0
    num_before_at_peak: Count = 0
    num_frees_of_unknown: Count = 0
    num_frees_not_seen: Count = 0
    holders: list[Holder] = []
    """At the peak, or when the snapshot was taken if there is no history; those with most bytes first."""
    num_holders: Count = 0
    num_out_of_memory: Count = 0
    out_of_memory: list[OutOfMemoryEvent] = []
    """The first ones."""


class EmbeddingGradient(Struct):
    """Rows of an embedding, and those whose gradient has a nonzero element."""

    layer: str
    num_rows: Count
    num_used_rows: Count
    gradient_bytes: Amount
    sparse: bool


class DenormalState(Struct):
    """Share of denormal numbers in one state of an optimizer, such as `exp_avg_sq`, or in a layer's parameters."""

    denormal_frac: Share
    num_elements: Count
    optimizer: str | None = None
    state: str | None = None
    layer: str | None = None


class Recompute(Struct):
    """Time of modules' forwards inside the backwards of an iteration, time of the backwards, and slowest modules."""

    time_s: Amount
    backward_s: Amount
    layers: list[str] = []


class UnusedGradients(Struct):
    """Time of a model's gradients that are deleted unused, in the backwards whose other gradients an optimizer uses."""

    model: str
    optimizer: str
    time_s: Amount
    backward_s: Amount


class UnusedOutputs(Struct):
    """Rows of a layer's output, such as tokens, and those with a nonzero gradient."""

    layer: str
    num_rows: Count
    num_used_rows: Count


class RepeatedRows(Struct):
    """Rows of a layer's inputs, and those that repeat an earlier one."""

    layer: str
    num_rows: Count
    num_repeated: Count


class InputPadding(Struct):
    """Padded share of a model's input."""

    name: str
    padding_frac: Share


class LayerCalls(Struct):
    """Calls of a module in an iteration, and the host's time of its forwards."""

    layer: str
    layer_type: str
    num_calls: Count
    time_s: Amount


class Held(Struct, kw_only=True):
    """The variable that holds tensors, and the line that adds to it; None if not known."""

    variable: str | None = None
    file: str | None = None
    line: Count | None = None
    text: str | None = None


class HeldTensors(Held):
    """Live tensors of one shape that are neither parameters nor gradients nor optimizer state.

    `function` computed the last of them; None if it has no graph.
    """

    shape: list[Count]
    num_tensors: Count
    bytes: Amount
    has_graph: bool
    function: str | None = None


class HeldGraph(Held):
    """A live tensor with a large graph.

    `age_frac`: share of all nodes that the program's main thread had made so far that are younger than the graph's
    oldest; None in older records.
    """

    num_nodes: Count
    age_frac: Number | None = None


class HeldData(Held):
    """Tensors or arrays that a variable holds.

    `narrower` is the type that would hold the values, times `scale`; None if there is none.
    """

    shape: list[Count]
    dtype: str
    num_tensors: Count
    bytes: Amount
    narrower: str | None = None
    scale: Count = 1
    overlaps: bool = False
    """Whether each row is the one before shifted by one."""


class InspectionPass(Pass):
    """Facts of the pass `inspection`: gradients, optimizer state, inputs and module calls of an iteration."""

    num_iterations: Count | None = None
    embeddings: list[EmbeddingGradient] = []
    denormals: list[DenormalState] = []
    """Of the optimizers' state and the layers' parameters in a CPU's memory; layers with few are left out."""
    recompute: Recompute | None = None
    """None without a backward."""
    unused_gradients: list[UnusedGradients] = []
    padding: list[InputPadding] = []
    """Masks and identifiers with padding."""
    layer_calls: list[LayerCalls] = []
    """Modules that are called often."""
    unused_outputs: list[UnusedOutputs] = []
    """Linear layers with rows that nothing uses."""
    repeated_rows: list[RepeatedRows] = []
    """Outermost layers, without dropout, whose inputs repeat rows."""
    attention_weights: list[LayerCalls] = []
    """Attention layers that return weights of many keys: 384 or more, and not fewer than the layer is wide."""
    held_tensors: list[HeldTensors] = []
    held_graphs: list[HeldGraph] = []
    """Tensors that are alive at the end of the iteration, those that hold most memory, and the largest graphs."""
    held_data: list[HeldData] = []
    """The largest tensors and arrays that the program's variables hold."""
    missing: dict[str, str] = {}
    """Facts that are empty because they could not be read, with the reason."""


class Workspaces(Struct):
    """Source of the operators' internal memory in an estimate."""

    method: str | None = None
    num_measured: Count | None = None
    num_modelled: Count | None = None
    reason: str | None = None


class PredictionPass(Pass):
    """Facts of the pass `prediction`, a memory estimate."""

    peak_bytes: Amount | None = None
    low_bytes: Amount | None = None
    high_bytes: Amount | None = None
    tensors_bytes: Amount | None = None
    workspaces_bytes: Amount | None = None
    rounding_bytes: Amount | None = None
    reserved_peak_bytes: Amount | None = None
    context_bytes: Amount | None = None
    context_high_bytes: Amount | None = None
    """Upper bound of the CUDA context, a part of `needed_bytes`; None on a CPU."""
    needed_bytes: Amount | None = None
    device: str | None = None
    device_memory_bytes: Amount | None = None
    fits: bool | None = None
    uncertain: list[str] | None = None
    duration_s: Amount | None = None
    workspaces: Workspaces | None = None
    calibration: Workspaces | None = None
    """The same, from charact 0.1 before it measured operators alone."""


class FlopPass(Pass):
    """Facts of the pass `flop`."""

    uncounted: list[str] = []
    product_precision: str | None = None
    recomputed_flop: Amount | None = None
    """FLOP of an iteration's layers whose forward runs again inside a backward; None in older records."""
    unplaced_flop: Amount | None = None
    """FLOP for which the operator pass has no row; `unplaced_bytes`: bytes."""
    unplaced_bytes: Amount | None = None


class FitPass(Pass):
    """Facts of the pass `fit`, a search of the largest size that fits."""

    ended_by: str | None = None
    num_predictions: Count | None = None
    duration_s: Amount | None = None


class SourceOutcome(Struct):
    """Outcome of reading a source of counters."""

    status: str
    reason: str | None = None
    remedy: str | None = None
    missing: dict[str, str] = {}
    """Counters that the device does not give, with the reason."""
    num_iterations: Count | None = None
    num_broken_rows: Count | None = None
    metrics: list[str] = []
    """Of a source with a pass of its own: its iterations, unreadable rows of its output, and requested metrics."""
    sampling_interval_s: Amount | None = None
    num_samples: Count | None = None
    clock_error_s: Amount | None = None
    spans: list[tuple[Number, Number, str]] = []
    """Of a source that samples in a pass of its own; start, end (s) and phase of each of its spans."""


class CountersPass(Pass):
    """Facts of the pass `counters`."""

    num_iterations: Count | None = None
    duration_s: Amount | None = None
    sources: dict[str, SourceOutcome] = {}
    spans: list[tuple[Number, Number, Phase | None]] = []


class Frame(Struct):
    """A line of code in which the sampler saw a program."""

    place: str
    function: str
    num_samples: Count
    library: str | None = None
    waiting_frac: Share | None = None
    """Share of the samples' time in which the program's thread used no processor; None if unknown."""
    text: str | None = None
    """The line's text; None if its file could not be read."""
    in_loop: bool | None = None
    """Whether the line is in a comprehension, or in a loop inside of an iteration; None if not known."""


class FramesPass(Pass):
    """Facts of the pass `frames`."""

    interval_s: Amount | None = None
    delay_s: Amount | None = None
    """Median time by which a sample was late: the longest by which a call that releases the GIL seems longer."""
    num_samples: Count = 0
    frames: list[Frame] = []
    """In `other`."""
    num_data_samples: Count = 0
    data_frames: list[Frame] = []
    num_forward_samples: Count = 0
    forward_frames: list[Frame] = []
    num_loss_samples: Count = 0
    loss_frames: list[Frame] = []
    num_backward_samples: Count = 0
    backward_frames: list[Frame] = []
    num_update_samples: Count = 0
    update_frames: list[Frame] = []
    num_outside_samples: Count = 0
    outside_frames: list[Frame] = []
    """Outside of all iterations of the program."""
    num_between_samples: Count = 0
    between_frames: list[Frame] = []
    """Outside of all iterations, since the first one began."""
    num_slow_samples: Count = 0
    slow_frames: list[Frame] = []
    """In slow iterations."""

    def __post_init__(self) -> None:
        for num_samples, frames in SAMPLED_PHASES.values():
            if sum(frame.num_samples for frame in getattr(self, frames)) > getattr(self, num_samples):
                raise ValueError("the frames have more samples than the pass")


class Target(Struct):
    """A value of a metric, and the epoch that reached it (None if no epoch did)."""

    metric: str
    value: Number
    epoch: Count | None


class Protocol(Struct):
    """A published training protocol; `changed` maps each differing option to its published and its used value."""

    name: str
    source: str
    unstated: str
    changed: dict[str, tuple[Any, Any]]


class CollectivesPass(Pass):
    """Facts of a rank's recorded collectives."""

    num_lost: Count = 0
    num_not_completed: Count = 0
    """Of a dump of the flight recorder."""
    backend: str | None = None


class TrainingPass(Pass):
    """Facts of the pass `training`."""

    num_epochs_asked: Count | None = None
    num_epochs: Count | None = None
    setup_s: Amount | None = None
    until: Target | None = None
    best: Target | None = None
    num_train_samples: Count | None = None
    num_valid_samples: Count | None = None
    num_resumed: Count = 0
    weights: str | None = None
    protocol: Protocol | None = None


class InferencePass(Pass):
    """Facts of the pass `inference`."""

    weights: str | None = None
    weights_reason: str | None = None
    weights_bytes: Amount | None = None
    cold_reason: str | None = None
    num_samples: Count | None = None
    num_batches: Count | None = None
    setup_s: Amount | None = None
    total_s: Amount | None = None


class Direction(Facts):
    """Outcome of timing one of the `DIRECTIONS` of a basic operation."""

    ended_by: str | None = None
    num_warmup_calls: Count | None = None
    num_warmup_repetitions: Count | None = None
    """Between ranks."""
    warmup_ended_by: str | None = None
    num_repetitions: Count | None = None
    num_calls: Count | None = None
    """Calls of a repetition."""
    precision_target_frac: Amount | None = None
    interval_frac: Amount | None = None
    num_inputs: Count | None = None
    """Sets of inputs that the calls used in turn."""
    inputs_bytes: Amount | None = None
    cache_bytes: Amount | None = None
    num_ranks: Count | None = None
    backend: str | None = None


class OpsPass(Pass):
    """Facts of the pass `ops`."""

    directions: dict[str, Direction] = {}


class BricksPass(Pass):
    """Facts of the pass `bricks`."""

    g: Count | None = None
    cut_method: str | None = None
    method: str | None = None
    suite: str | None = None
    suite_digest: str | None = None
    num_bricks: Count | None = None
    num_failed: Count = 0
    num_left_out: Count = 0
    num_rounds: Count | None = None
    ended_by: str | None = None
    precision_target_frac: Amount | None = None
    interval_frac: Number | None = None
    timed_s: Amount | None = None
    set_up_s: Amount | None = None
    preparing_s: Amount = 0.0
    describing_s: Amount | None = None
    clock_s: Number | None = None
    """Time of the clock itself, which is subtracted."""
    backward_start_s: Number | dict[str, Number | None] | None = None
    step_start_s: Number | dict[str, Number | None] | None = None
    num_resumed: Count = 0
    uncounted: list[str] = []
    undescribed: dict[str, str] = {}
    """Bricks whose work could not be counted, with the reason."""


class ConstructPass(Pass):
    """Facts of the pass `construct`."""

    brick_run: str | None = None
    brick_case: str | None = None
    timing_method: str | None = None
    g: Count | None = None
    cut_method: str | None = None
    suite_digest: str | None = None
    num_rounds: Count | None = None
    num_repeats: Count | None = None
    timed_s: Amount | None = None
    set_up_s: Amount | None = None
    num_pieces: Count | None = None
    num_bricks: Count | None = None
    num_layers: Count | None = None
    num_module_calls: Count | None = None
    captured_by: str | None = None
    clock: str | None = None
    backward_start_s: Number | None = None
    correction: dict[str, Any] | None = None
    correction_reason: str | None = None


_P = TypeVar("_P", bound=Pass)


class _Recorded(Generic[_P]):
    """Attribute of `Passes`: a recorded pass; without it an empty one, whose status is None."""

    def __init__(self, type_: type[_P]) -> None:
        self.type = type_

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, passes: "Passes", owner: type) -> _P:
        recorded: Any = passes.get(self._name)
        return self.type() if recorded is None else recorded


class Passes(dict[str, Pass]):
    """The passes that a case has taken, by name; attributes of the same names also exist for passes not taken."""

    timing = _Recorded(TimingPass)
    operators = _Recorded(OperatorsPass)
    kernels = _Recorded(Pass)
    memory = _Recorded(MemoryPass)
    snapshot = _Recorded(SnapshotPass)
    flop = _Recorded(FlopPass)
    prediction = _Recorded(PredictionPass)
    fit = _Recorded(FitPass)
    counters = _Recorded(CountersPass)
    frames = _Recorded(FramesPass)
    training = _Recorded(TrainingPass)
    inference = _Recorded(InferencePass)
    ops = _Recorded(OpsPass)
    bricks = _Recorded(BricksPass)
    inspection = _Recorded(InspectionPass)
    construct = _Recorded(ConstructPass)
    collectives = _Recorded(CollectivesPass)

    def end(self, name: str, status: str, reason: str | None) -> None:
        """Record a pass that has no facts, because it failed or was skipped."""
        self[name] = PASSES.get(name, Pass)(status, reason)


PASSES: dict[str, type[Pass]] = {
    name: attribute.type for name, attribute in vars(Passes).items() if isinstance(attribute, _Recorded)}
"""Type of each pass; a pass that is not listed is read as `Pass`."""
