"""How much models share, counted by hand."""

from pathlib import Path

import pandas as pd
import pytest
import torch
from support.captured_by_hand import ByHand, configuration

from charact.analysis.bricks.reuse import brick_reuse, layer_type_share, model_reuse, sequence_lengths, unique_share
from charact.bricks.suite.composition import Composition, load_compositions
from charact.bricks.suite.index import Suite
from charact.bricks.suite.writer import CutModel, add_models, cut_model
from charact.core.errors import UserError


def row_of(name: str, *operators: str) -> CutModel:
    """A model whose layers stand in a row; `|` ends a piece, since the model gives what is made there."""
    made = ByHand()
    x = made.leaf("input", torch.rand(2, 2))
    results = []
    for operator in operators:
        if operator == "|":
            results.append(x)
        else:
            x = made.add(f"{operator}.default", x)
    return cut_model(made.model(*results, x), configuration(name), 2, "chains")


@pytest.fixture
def shared(tmp_path: Path) -> tuple[list[Composition], Suite]:
    """Pieces: a is relu+tanh three times and sin; b is relu+tanh and cos+exp."""
    models = [row_of("a", *["relu", "tanh"] * 3, "sin"), row_of("b", "relu", "tanh", "cos", "exp"),
              row_of("decoy", "neg", "|", "abs")]  # fmt: skip
    suite = add_models(tmp_path / "suite", models[:2], 2, "chains", "2.13.0", models[2:]).suite
    return load_compositions(suite.private), suite


def test_unique_shares(shared: tuple[list[Composition], Suite]) -> None:
    assert unique_share(*shared).to_dict("records") == [{
        "num_models": 2, "num_layers": 11, "num_pieces": 6, "num_bricks": 3, "num_unique_layers": 5,
        "unique_pieces_frac": 3 / 6, "unique_layers_frac": 5 / 11,
    }]  # fmt: skip


def test_repeats_within_and_across_models(shared: tuple[list[Composition], Suite]) -> None:
    a, b = model_reuse(*shared).to_dict("records")
    assert (a["num_layers"], a["num_pieces"], a["num_bricks"], a["unique_frac"]) == (7, 4, 2, 0.5)
    assert (a["num_shared"], a["shared_frac"]) == (1, 0.5)
    assert (b["num_layers"], b["num_pieces"], b["num_bricks"], b["num_shared"]) == (4, 2, 2, 1)


def test_bricks_by_their_uses(shared: tuple[list[Composition], Suite]) -> None:
    found = brick_reuse(*shared)
    assert found.iloc[0].drop("brick").to_dict() == {
        "num_layers": 2, "layer_types": "relu+tanh", "num_uses": 4, "num_models": 2, "most_in_one": 3}
    assert sorted(found["layer_types"]) == ["cos+exp", "relu+tanh", "sin"]


def test_layers_by_type(shared: tuple[list[Composition], Suite]) -> None:
    found = layer_type_share(*shared)
    assert list(found["layer_type"]) == ["relu", "tanh", "cos", "exp", "sin"]
    assert found.iloc[0].to_dict() == {"layer_type": "relu", "num_layers": 4, "num_unique": 1, "unique_frac": 0.25}


def test_lengths(shared: tuple[list[Composition], Suite]) -> None:
    assert sequence_lengths(*shared).to_dict("records") == [
        {"num_layers": 1, "num_pieces": 1, "num_bricks": 1, "pieces_frac": 1 / 6},
        {"num_layers": 2, "num_pieces": 5, "num_bricks": 2, "pieces_frac": 5 / 6}]


def test_no_models_have_no_shares(shared: tuple[list[Composition], Suite]) -> None:
    suite = shared[1]
    assert unique_share([], suite)["unique_pieces_frac"].isna().all()
    for table in (model_reuse, brick_reuse, layer_type_share, sequence_lengths):
        found: pd.DataFrame = table([], suite)
        assert found.empty
        assert len(found.columns) >= 4


def test_a_composition_of_another_suite_is_refused(shared: tuple[list[Composition], Suite]) -> None:
    other = row_of("c", "erf").composition
    with pytest.raises(UserError, match="has no brick"):
        unique_share([other], shared[1])
