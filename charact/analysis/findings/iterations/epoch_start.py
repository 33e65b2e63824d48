"""The first iteration of each epoch takes long, because workers, a sampler or a data set start again."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding, Place
from charact.analysis.findings._slow_lines import slow_line
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if the first iterations of epochs are slower than the others."""
    group = case.slow_groups.get("epoch_start")
    if group is None:
        return
    count = len(group.indices)
    saving = case.saving_in_all(group.extra_s * (count - 1) / count * 0.8, group.extra_s)
    if saving is None:
        return
    evidence = (f"the first iterations of {count} epochs take {quantity(group.slow_s, 's')}, the others "
                f"{quantity(group.typical_s, 's')}; most of the difference is in {group.phase}")
    loader = next((each for each in case.settings.get("loaders", [])
                   if each.get("num_workers") and not each.get("persistent_workers")
                   and (each.get("num_iterators") or 0) > 1), None)
    if loader is not None and group.phase == "data":
        place = Place.of(loader)
        yield Finding(
            f"the DataLoader starts its {loader['num_workers']} worker processes again in every epoch",
            "pass persistent_workers=True to the DataLoader, or make epochs longer", saving, (evidence,),
            place=place, phase="data", setting="persistent_workers=False")
        return
    line = slow_line(case, group)
    where = "" if line is None else f"; most of their samples are at {line.place} in {line.function}"
    yield Finding(
        "the first iteration of every epoch takes much longer than the others",
        "do the work of an epoch's start once, in advance: keep open files and decoded data in memory, and shuffle a "
        "tensor of indices, torch.randperm(n), instead of Python objects", saving, (evidence + where,),
        "high" if line else "medium", place=line.place if line else None, phase=group.phase)
