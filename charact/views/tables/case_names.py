"""Short names of the cases of one run: only what differs between them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

_Case = Mapping[str, Any]
_SIZES = {"image": "px", "sequence": "tokens", "lookups": "lookups"}


def _size(case: _Case) -> str:
    size = case.get("input_size")
    return "" if size is None else f"{size} {_SIZES.get(str(case.get('input_kind')), 'of S')}"


def _batch(case: _Case) -> str:
    return "" if case.get("batch_size") is None else f"batch {case['batch_size']}"


def _outputs(case: _Case) -> str:
    return "" if case.get("output_size") is None else f"{case['output_size']} outputs"


def _cache(case: _Case) -> str:
    kind = case.get("cache")
    return "" if kind is None else f"{'no' if kind == 'none' else kind} cache"


def _attention(case: _Case) -> str:
    return f"{case['attention']} attention" if case.get("attention") else ""


def _rank(case: _Case) -> str:
    return "" if case.get("rank") is None else f"rank {case['rank']}"


def _parallel(case: _Case) -> str:
    return f"{case['parallel']} over {case.get('world_size')} ranks" if case.get("parallel") else ""


def _lora(case: _Case) -> str:
    return f"LoRA of rank {case['lora_rank']}" if case.get("lora_rank") else ""


def _text(name: str) -> Callable[[_Case], str]:
    return lambda case: str(case.get(name) or "").replace("n/a", "").replace("as written", f"{name} as written")


_FACTS: tuple[Callable[[_Case], str], ...] = (
    _text("workload"), _text("variant"), _size, _outputs, _batch, _text("mode"), _lora, _text("precision"), _cache,
    _attention, _text("device"), _text("data"), _parallel, _rank,
)  # fmt: skip


def short_names(cases: Sequence[_Case]) -> dict[str, str]:
    """Return a short name for each case, such as '224 px, train' for resnet50-224-b8-train-fp32-cpu.

    It holds the facts that differ between the cases. Cases keep their names if these facts do not tell them apart, or
    if there is only one case.

    Args:
        cases: entries of the manifest.
    """
    columns = [[fact(case) for case in cases] for fact in _FACTS]
    different = [column for column in columns if len(set(column)) > 1]
    names = [", ".join(filter(None, facts)) for facts in zip(*different, strict=True)]
    if len(set(names)) < len(cases) or not all(names):
        return {case["case"]: case["case"] for case in cases}
    return {case["case"]: name for case, name in zip(cases, names, strict=True)}


def common_facts(cases: Sequence[_Case]) -> list[str]:
    """Return the facts that all cases of a run share, such as ['batch 8', 'fp32', 'cpu']."""
    columns = [[fact(case) for case in cases] for fact in _FACTS]
    return [column[0] for column in columns if len(set(column)) == 1 and column[0]]


def shared_end(names: Sequence[str]) -> str:
    """Return the last parts that all names share, such as -fp32-cpu; empty if all names are equal.

    The first part of each name is not among them.
    """
    words = [name.split("-") for name in names]
    shared = 0
    if len(set(names)) > 1:
        while len({tuple(parts[-shared - 1 :]) for parts in words}) == 1 and shared < min(map(len, words)) - 1:
            shared += 1
    return "".join(f"-{part}" for part in words[0][len(words[0]) - shared :]) if shared else ""
