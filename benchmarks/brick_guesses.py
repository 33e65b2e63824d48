"""How often somebody who has only a suite guesses which brick follows which, from its value distributions.

Layers without weights run on values drawn from their own distributions. Of all input activations of other bricks with
the shape and signs of the output, the one with the most similar values is the guess: as they are, and up to a factor. A
guess is right if any model has the two bricks in a row. Guesses without a choice, and those that cannot be right, are
left out. The number that chance would guess among the same activations is printed, too.

    python benchmarks/brick_guesses.py resnet18 googlenet xception --input-size 64

prints both for the distributions as captured, which suites of image models hold, and perturbed, as those of other
models.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from charact.bricks.aten import runnable
from charact.bricks.capture.capture import capture
from charact.bricks.commands._models import sources_of
from charact.bricks.suite.brick import Brick
from charact.bricks.suite.captured_graph import Json
from charact.bricks.suite.composition import Configuration, cut_model
from charact.bricks.suite.suite import perturbed
from charact.bricks.value_distributions import draw

Distance = Callable[[Tensor, Tensor], float]
_SHARES = (torch.arange(32, dtype=torch.float64) + 0.5) / 32
_MOST_DRAWN = 1_000_000


def as_they_stand(left: Tensor, right: Tensor) -> float:
    """How far quantiles are from each other, by the larger ones."""
    return float((left - right).abs().mean() / max(float(left.abs().mean()), float(right.abs().mean()), 1e-30))


def whatever_the_scale(left: Tensor, right: Tensor) -> float:
    """How far quantiles are from each other once both are of one size."""
    return as_they_stand(left / max(float(left.abs().mean()), 1e-30), right / max(float(right.abs().mean()), 1e-30))


def quantiles(values: Tensor) -> Tensor:
    """Those of finite values, 32 of them."""
    found = values.detach().reshape(-1).double()
    found = found[found.isfinite()][:_MOST_DRAWN]
    return found.quantile(_SHARES) if found.numel() else torch.zeros(32, dtype=torch.float64)


def results(brick: Brick, generator: torch.Generator) -> list[tuple[tuple[int, ...], Tensor]]:
    """Shapes and quantiles of what a brick makes of values drawn from its distributions.

    There is nothing of one that reads weights, is told no values or cannot be run.
    """
    if (any(each.kind != "activation" for each in brick.inputs)
            or not any("quantiles" in each.sample for each in brick.inputs)):
        return []
    try:
        made = runnable(brick)([draw(each, each.sample, "cpu", generator) for each in brick.inputs])
    except (RuntimeError, IndexError, ValueError):
        return []
    return [(tuple(each.shape), quantiles(each)) for each in made
            if isinstance(each, Tensor) and each.is_floating_point()]  # fmt: skip


def _signs(values: Tensor) -> tuple[bool, bool, bool]:
    return bool((values < 0).any()), bool((values == 0).any()), bool((values > 0).any())


def guesses(bricks: Sequence[Brick], follows: set[tuple[str, str]], distance: Distance) -> Iterator[tuple[bool, float]]:
    """Whether each guess is right, and how often one by chance is."""
    generator = torch.Generator().manual_seed(0)
    read: dict[tuple[int, ...], list[tuple[str, Tensor]]] = {}
    for brick in bricks:
        for each in brick.inputs:
            if "quantiles" in each.sample:
                told = torch.tensor(each.sample["quantiles"], dtype=torch.float64)
                read.setdefault(each.shape, []).append((brick.id, quantiles(told)))
    for brick in bricks:
        for shape, values in results(brick, generator):
            candidates = [(name, each) for name, each in read.get(shape, []) if name != brick.id]
            candidates = [(name, each) for name, each in candidates if _signs(each) == _signs(values)]
            right = [(brick.id, name) in follows for name, _ in candidates]
            if len({name for name, _ in candidates}) < 2 or not any(right):
                continue
            near = min(candidates, key=lambda each: distance(values, each[1]))
            yield (brick.id, near[0]) in follows, sum(right) / len(right)


def main() -> None:
    """Guess, and say how often that was right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--input-size", type=int)
    parser.add_argument("--g", type=int, default=1)
    asked = parser.parse_args()
    models = []
    for source in sources_of(asked.models, input_sizes=[asked.input_size] if asked.input_size else [],
                             modes=["infer"]):  # fmt: skip
        what: dict[str, Json] = {"mode": "infer", "precision": "fp32", "input_size": None, "batch_size": None}
        workload = source.case.workload
        models.append(cut_model(capture(source), Configuration(source.id, workload.name, workload.variant, **what),
                                asked.g, "chains"))  # fmt: skip
    follows = {(model.composition.pieces[source[0]].brick, piece.brick) for model in models
               for piece in model.composition.pieces for source in piece.inputs if source is not None}  # fmt: skip
    # As the first model has them.
    captured = list({brick.id: brick for model in reversed(models) for brick in model.bricks}.values())
    for where, bricks in (("as captured", captured), ("perturbed", [perturbed(brick) for brick in captured])):
        for distance in (as_they_stand, whatever_the_scale):
            found = list(guesses(bricks, follows, distance))
            right, chance = sum(each for each, _ in found), sum(each for _, each in found)
            print(f"{where}, {distance.__name__.replace('_', ' ')}: {right} of {len(found)} guesses right, "
                  f"{chance:.1f} by chance")


if __name__ == "__main__":
    main()
