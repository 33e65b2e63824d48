"""Checks of `acceptance.py` by name, in the order in which they run: the others rely on the first ones."""

from gpu.checks import counters, machine, memory, records, times
from gpu.checks.session import Check

CHECKS: dict[str, Check] = {
    "environment": machine.check_environment, "workspaces": memory.check_workspaces, "doctor": machine.check_doctor,
    "passes": records.check_passes, "cold": times.check_cold, "iteration": times.check_iteration,
    "phases": times.check_phases, "overhead": times.check_overhead, "memory": memory.check_memory,
    "counters": counters.check_counter_pass, "flop": records.check_flop, "import": records.check_import,
    "ceilings": machine.check_ceilings, "operations": machine.check_operations, "prediction": memory.check_prediction,
    "oom": memory.check_out_of_memory, "energy": counters.check_energy, "gpm": counters.check_gpm,
    "watched": times.check_watched, "graphs": records.check_graphs, "function": times.check_own_function,
    "precision-api": records.check_precision_api, "ncu": counters.check_ncu, "pm": counters.check_pm,
    "compile": records.check_compile,
}
