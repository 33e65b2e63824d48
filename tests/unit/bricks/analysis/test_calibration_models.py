import json
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.brick_runs import composition

from charact.bricks.analysis.calibration import typical
from charact.bricks.analysis.construction import Construction


def model(name: str, sum_s: float = 1.0, update_s: float = 0.0, **share_fracs: float) -> Construction:
    """A constructed model of which is told only what layers its time goes to."""
    pieces: list[dict[str, Any]] = [
        {"layer_types": json.dumps([layer]), "phase": "forward", "time_s": share * sum_s}
        for layer, share in share_fracs.items()
    ]
    if update_s:
        pieces.append({"layer_types": "[]", "phase": "update", "time_s": update_s})
    times: Any = SimpleNamespace()
    return Construction(composition(["a"], model=name), times, "host_s", sum_s, 0, None, pieces, [])


def names(models: list[Construction]) -> list[str]:
    return [each.composition.model for each in models]


def some(number: int, seed: int = 0) -> list[Construction]:
    generator = np.random.default_rng(seed)
    return [model(f"m{each}", float(generator.uniform(1e-3, 1)),
                  **dict(zip(("conv2d", "linear", "gru"), generator.dirichlet([0.7] * 3).tolist(), strict=True)))
            for each in range(number)]  # fmt: skip


def distances_from(chosen: list[Construction], models: list[Construction]) -> float:
    """The sum over models of the Hellinger distance to the nearest of those chosen."""
    def roots(each: Construction) -> Any:
        times = np.array([row["time_s"] for row in each.pieces])
        return np.sqrt(times / times.sum())

    return float(sum(min(np.linalg.norm(roots(each) - roots(one)) for one in chosen) for each in models))


def test_one_of_each_kind_is_chosen_however_many_there_are_and_however_long_they_take() -> None:
    models = [*(model(f"cnn{each}", 100.0 + each, conv2d=0.9, relu=0.1) for each in range(20)),
              *(model(f"rnn{each}", 0.01, gru=0.9 - 0.01 * each, linear=0.1 + 0.01 * each) for each in range(4)),
              model("mlp", 5.0, linear=1.0)]  # fmt: skip
    assert [name[:3] for name in names(typical(models, 3))] == ["rnn", "mlp", "cnn"]


def test_layers_of_one_type_of_operator_are_alike() -> None:
    models = [model("a", conv1d=1.0), model("b", conv2d=1.0), model("c", 2.0, linear=1.0)]
    assert len(set(names(typical(models, 2))) & {"a", "b"}) == 1
    assert "c" in names(typical(models, 2))


def test_an_optimizer_s_step_counts() -> None:
    models = [model("a", conv2d=1.0), model("b", conv2d=1.0), model("c", conv2d=1.0, update_s=9.0)]
    assert "c" in names(typical(models, 2))


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_no_exchange_brings_them_nearer_and_hardly_any_choice_does(number: int) -> None:
    models = some(14)
    chosen = typical(models, number)
    assert len(set(names(chosen))) == number
    reached = distances_from(chosen, models)
    others = [each for each in models if each not in chosen]
    for place, other in ((place, other) for place in range(number) for other in others):
        assert distances_from([*chosen[:place], other, *chosen[place + 1:]], models) >= reached - 1e-9
    best = min(distances_from(list(each), models) for each in combinations(models, number))
    assert reached <= best * 1.1


def test_their_order_does_not_matter_and_they_come_from_short_to_long() -> None:
    models = some(30)
    chosen = typical(models, 8)
    assert names(typical(models[::-1], 8)) == names(chosen)
    assert [each.sum_s for each in chosen] == sorted(each.sum_s or 0.0 for each in chosen)


def test_where_there_are_no_more_all_are() -> None:
    models = some(8)
    assert sorted(names(typical(models, 8))) == sorted(names(models))
    assert typical([], 8) == []


def test_models_that_are_the_same_to_it_are_chosen_once_each() -> None:
    assert len(set(names(typical([model(f"m{each}", relu=1.0) for each in range(12)], 8)))) == 8
