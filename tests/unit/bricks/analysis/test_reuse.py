"""How much models share, counted by hand."""

from pathlib import Path

import pandas as pd
import pytest
import torch
from support.captured_by_hand import ByHand, configuration

from charact.bricks.analysis.tables import brick_reuse, layer_reuse, model_reuse, suite_pieces
from charact.bricks.suite.composition import Composition, CutModel, cut_model, load_compositions
from charact.bricks.suite.suite import Suite, add_models
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


def test_repeats_within_and_across_models(shared: tuple[list[Composition], Suite]) -> None:
    a, b, both = model_reuse(suite_pieces(*shared)).to_dict("records")
    assert (a["num_layers"], a["num_pieces"], a["num_bricks"], a["unique_frac"]) == (7, 4, 2, 0.5)
    assert (a["num_shared"], a["shared_frac"]) == (1, 0.5)
    assert (b["num_layers"], b["num_pieces"], b["num_bricks"], b["num_shared"]) == (4, 2, 2, 1)
    assert pd.isna(both["case"])
    assert (both["num_layers"], both["num_pieces"], both["num_bricks"], both["unique_frac"]) == (11, 6, 3, 0.5)


def test_bricks_by_their_uses(shared: tuple[list[Composition], Suite]) -> None:
    found = brick_reuse(suite_pieces(*shared))
    assert found.iloc[0].drop("brick").to_dict() == {
        "layers": "relu + tanh", "num_uses": 4, "num_models": 2, "most_in_one": 3}
    assert sorted(found["layers"]) == ["cos + exp", "relu + tanh", "sin"]


def test_sequences_of_layers(shared: tuple[list[Composition], Suite]) -> None:
    found = layer_reuse(suite_pieces(*shared))
    assert list(found["layers"]) == ["relu + tanh", "sin", "cos + exp"]
    assert found.iloc[0].drop("layers").to_dict() == {
        "num_pieces": 4, "num_bricks": 1, "unique_frac": 0.25, "num_models": 2, "num_shared": 1}


def test_no_models_have_no_rows(shared: tuple[list[Composition], Suite]) -> None:
    pieces = suite_pieces([], shared[1])
    for table in (model_reuse, brick_reuse, layer_reuse):
        found: pd.DataFrame = table(pieces)
        assert found.dropna(subset=found.columns[:1]).empty
        assert len(found.columns) >= 5


def test_a_composition_of_another_suite_is_refused(shared: tuple[list[Composition], Suite]) -> None:
    other = row_of("c", "erf").composition
    with pytest.raises(UserError, match="has no brick"):
        suite_pieces([other], shared[1])
