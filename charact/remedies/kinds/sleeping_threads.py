"""Let OpenMP's threads sleep while they wait, so that workers and other programs get the cores."""

from charact.remedies.program import Program
from charact.remedies.remedy import Remedy, Setting


def _settings(program: Program) -> list[Setting] | str:
    if not program.on_cpu:
        return "the model is not on the CPU"
    set_before = program.run.manifest.get("software", {}).get("environment") or {}
    if set_before.get("OMP_WAIT_POLICY") == "PASSIVE":
        return "OMP_WAIT_POLICY is PASSIVE already"
    has_workers = any(loader.num_workers for loader in program.settings.loaders)
    expected = program.expected_frac("contention") or (0.05 if has_workers else 0.0)
    return [Setting("sleeping-threads", {}, "OMP_WAIT_POLICY=PASSIVE", "export OMP_WAIT_POLICY=PASSIVE",
                    expected_frac=expected)]


REMEDY = Remedy("sleeping-threads", _settings, environment=lambda values: {"OMP_WAIT_POLICY": "PASSIVE"},
                findings=("contention",))
