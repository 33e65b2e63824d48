"""Tables about a run: nouns that return a DataFrame. Nothing here imports torch or measures."""

from charact.analysis.bottleneck import bottlenecks
from charact.analysis.breakdown import (
    OUTSIDE_OPERATORS,
    operator_coverage,
    operator_types,
    phase_breakdown,
    top_operators,
)
from charact.analysis.cases import case_summary, iteration_times
from charact.analysis.ceilings import case_ceilings, ceilings, ceilings_disturbed_frac, ceilings_reason
from charact.analysis.counters import (
    counter_meaning,
    counter_ranges,
    counter_sources,
    counter_spans,
    counter_timeline,
    counter_values,
    counters_by_kernel,
    counters_by_phase,
    missing_counters,
    thinned,
)
from charact.analysis.kernels import counted_kernels, top_kernels
from charact.analysis.layers import top_layers
from charact.analysis.memory import (
    is_memory_run,
    memory_by_phase,
    memory_composition,
    memory_needs,
    memory_peaks,
    weights_and_intermediate,
)
from charact.analysis.memory_growth import case_series, memory_by_size, memory_growth, training_to_inference
from charact.analysis.memory_limits import memory_fits, out_of_memory, out_of_memory_composition
from charact.analysis.memory_timeline import memory_timeline, peak_moments
from charact.analysis.operations import call_times, operation_cases, operation_shares, operation_times, suite_totals
from charact.analysis.parts import part_breakdown
from charact.analysis.passes import (
    missed_precision,
    pass_outcomes,
    pass_reason,
    passes_taken,
    stop_rules,
    was_asked_for,
)
from charact.analysis.program import (
    attribution,
    blind_spots,
    dropped,
    has_unexplained_other,
    is_imported,
    is_watched,
    phase_evidence,
    sampled_frames,
)
from charact.analysis.roofline import roofline
from charact.analysis.sparsity import sparse_crossover, sparse_speeds
from charact.analysis.stages import (
    INFERENCE_PARTS,
    TRAINING_STAGES,
    inference_breakdown,
    inference_summary,
    learning_curves,
    prediction_metrics,
    stage_breakdown,
    stage_times,
    training_summary,
)
from charact.analysis.time_limits import LIMITS, time_limits
from charact.analysis.utilization import UTILIZATION_METRICS, energy, energy_reason, utilization

__all__ = [
    "INFERENCE_PARTS",
    "LIMITS",
    "OUTSIDE_OPERATORS",
    "TRAINING_STAGES",
    "UTILIZATION_METRICS",
    "attribution",
    "blind_spots",
    "bottlenecks",
    "call_times",
    "case_ceilings",
    "case_series",
    "case_summary",
    "ceilings",
    "ceilings_disturbed_frac",
    "ceilings_reason",
    "counted_kernels",
    "counter_meaning",
    "counter_ranges",
    "counter_sources",
    "counter_spans",
    "counter_timeline",
    "counter_values",
    "counters_by_kernel",
    "counters_by_phase",
    "dropped",
    "energy",
    "energy_reason",
    "has_unexplained_other",
    "inference_breakdown",
    "inference_summary",
    "is_imported",
    "is_memory_run",
    "is_watched",
    "iteration_times",
    "learning_curves",
    "memory_by_phase",
    "memory_by_size",
    "memory_composition",
    "memory_fits",
    "memory_growth",
    "memory_needs",
    "memory_peaks",
    "memory_timeline",
    "missed_precision",
    "missing_counters",
    "operation_cases",
    "operation_shares",
    "operation_times",
    "operator_coverage",
    "operator_types",
    "out_of_memory",
    "out_of_memory_composition",
    "part_breakdown",
    "pass_outcomes",
    "pass_reason",
    "passes_taken",
    "peak_moments",
    "phase_breakdown",
    "phase_evidence",
    "prediction_metrics",
    "roofline",
    "sampled_frames",
    "sparse_crossover",
    "sparse_speeds",
    "stage_breakdown",
    "stage_times",
    "stop_rules",
    "suite_totals",
    "thinned",
    "time_limits",
    "top_kernels",
    "top_layers",
    "top_operators",
    "training_summary",
    "training_to_inference",
    "utilization",
    "was_asked_for",
    "weights_and_intermediate",
]
