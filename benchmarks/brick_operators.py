"""Operators that captures of models hold: what the allow-list of `charact.bricks.aten` was made from.

    python benchmarks/brick_operators.py operators.json charact torchvision timm transformers

Every workload in every variant, in inference and in training, in fp32 and bf16, and the models of `brick_zoo` that are
installed, are captured at small sizes. The file maps each operator to the first model that called it, and each text
among arguments to an operator; the last line names those that the list lacks.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

from brick_zoo import members

from charact.bricks.allowlist import OPERATORS, STRINGS
from charact.bricks.capture.capture import capture
from charact.bricks.capture.recording import Source
from charact.bricks.commands._models import sources_of
from charact.core.errors import UserError
from charact.workload.registry import all_workloads

_DEEP = ("resnet101", "resnet152", "resnet152v2", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19", "vgg19_bn")


def _sources(families: set[str]) -> Iterator[Source]:
    for workload in all_workloads().values():
        for variant in workload.variants if "charact" in families and workload.name not in _DEEP else ():
            size = min(workload.default_input_size, 12) if workload.input_kind == "sequence" else 64
            for precision in ("fp32", "bf16"):
                for mode in ("infer", "train"):
                    try:
                        yield from sources_of([workload.name], variant=variant, batch_sizes=[2], input_sizes=[size],
                                              modes=[mode], precisions=[precision])
                    except UserError:
                        yield from sources_of([workload.name], variant=variant, batch_sizes=[2], modes=[mode],
                                              precisions=[precision])
    for mode in ("infer", "train"):
        yield from (member.source for member in members(2, mode, families - {"charact"}))


def _texts(thing: Any) -> Iterator[str]:
    if isinstance(thing, str):
        yield thing
    elif isinstance(thing, list):
        for each in thing:
            yield from _texts(each)


def main(path: str, families: set[str]) -> None:
    """Capture, and write what was found after each model."""
    operators: dict[str, str] = {}
    texts: dict[str, str] = {}
    for source in _sources(families):
        try:
            captured = capture(source)
        except Exception as error:  # someone else's model, which fails as it likes
            print(f"{source.id}: {error}"[:200], file=sys.stderr)
            continue
        for layer in captured.layers:
            if operators.setdefault(layer.operator, source.id) == source.id:
                texts |= {text: layer.operator for thing in (layer.args, list(layer.kwargs.values()))
                          for text in _texts(thing)}
        print(source.id, len(operators), flush=True)
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"operators": dict(sorted(operators.items())), "texts": texts}, file, indent=1)
    packets = {name.split(".")[1].removesuffix("_"): name for name in operators}
    print("not listed:", sorted({packets[each] for each in packets.keys() - OPERATORS} | (texts.keys() - STRINGS)))


if __name__ == "__main__":
    main(sys.argv[1], set(sys.argv[2:]))
