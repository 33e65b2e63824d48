"""A workload around a model of the user's own: what it is fed, which loss it is trained with, what is refused."""

import pickle
import string
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.measure.passes.flops import flop_pass
from charact.measure.passes.phase_timer import HostPhases
from charact.record.manifest_passes import FlopPass
from charact.workload.user_model.import_target import call_arguments
from charact.workload.user_model.input_spec import TYPES, InputSpec, TensorSpec, parse_input_spec
from charact.workload.user_model.loss import cross_entropy, default_loss, main_output, named_loss
from charact.workload.user_model.model import OwnModel, SyntheticInputs, own_model


class Pictures(nn.Module):
    """Logits of pictures."""

    def __init__(self, width: int = 4, num_classes: int = 10) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, width, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                                  nn.Linear(width, num_classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class Speaking(nn.Module):
    """Two inputs, by position or name; a dictionary of outputs, with a loss where labels come, as Hugging Face does."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: Any = None) -> dict[str, Any]:
        logits = self.head(self.embedding(input_ids)) * attention_mask[..., None]
        outputs = {"hidden": self.embedding(input_ids), "logits": logits}
        return outputs if labels is None else {"loss": 3 * cross_entropy(logits, labels), **outputs}


class ReadsNumbers(nn.Module):
    """Reads a tensor's values as it is made, as models with drop paths do, and uses one weight twice."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = [scale.item() for scale in torch.linspace(0.5, 1, 2)]
        self.first, self.second, self.norm = nn.Linear(8, 8, bias=False), nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.second(self.first(x) * self.scales[0]) * self.scales[1])


NOT_A_MODEL = 3
A_MODEL = Pictures()


def a_number() -> int:
    return 3


def squared(outputs: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
    return (outputs**2).mean() if target is None else ((outputs.sum(1) - target) ** 2).mean()


def made(name: str = "Pictures", spec: str = "3xSxS -> int64[10]", *, arguments: str = "", loss: str | None = None,
         optimizer: str = "SGD") -> OwnModel:
    return own_model(f"{__name__}:{name}", arguments, parse_input_spec(spec), loss, optimizer, 0.01)


def case(workload: OwnModel, mode: str = "train", precision: str = "fp32") -> Case:
    return Case(workload.prepare(), 8, 4, mode, precision, torch.device("cpu"), DataRequest())


class TestWhatIsFed:
    @pytest.mark.parametrize(("text", "shapes", "types"), [
        ("3xSxS", [(4, 3, 8, 8)], [torch.float32]),
        ("S", [(4, 8)], [torch.float32]),
        (" 3 x S x S->int64[10]", [(4, 3, 8, 8), (4,)], [torch.float32, torch.int64]),
        ("SxBx5", [(8, 4, 5)], [torch.float32]),
        ("int32[9]S,mask = bool S", [(4, 8), (4, 8)], [torch.int32, torch.bool]),
        ("3xSxS -> uint8[21] SxS", [(4, 3, 8, 8), (4, 8, 8)], [torch.float32, torch.uint8]),
        ("S, int64[5] 26 -> float32", [(4, 8), (4, 26), (4,)], [torch.float32, torch.int64, torch.float32]),
    ])
    def test_a_batch_has_the_shapes_and_types_of_the_spec(self, text: str, shapes: Any, types: Any) -> None:
        samples = SyntheticInputs(parse_input_spec(text), 8, seed=0)
        batch = samples.collate([samples[index] for index in range(4)])
        assert [tuple(tensor.shape) for tensor in batch] == shapes
        assert [tensor.dtype for tensor in batch] == types

    def test_values_lie_in_their_range_and_reach_its_ends(self) -> None:
        spec = parse_input_spec("int64[5:8] S, float32[2:3] S, int64[1:2] S, float32[.5] S, float32 S")
        words, share, ones, half, free = SyntheticInputs(spec, 2000, seed=1)[0]
        assert words.unique().tolist() == [5, 6, 7]
        assert 2 <= share.min() < 2.01 < 2.99 < share.max() < 3
        assert ones.unique().tolist() == [1]
        assert 0 <= half.min() < 0.01 < 0.49 < half.max() < 0.5
        assert abs(free.mean()) < 0.1 < 0.9 < free.std() < 1.1

    def test_samples_follow_from_seed_and_index_alone(self) -> None:
        spec = parse_input_spec("3xSxS -> int64[1000]")
        first, again, other = (SyntheticInputs(spec, 4, seed) for seed in (0, 0, 1))
        assert all(map(torch.equal, first[7], again[7]))
        assert not torch.equal(first[7][0], first[8][0])
        assert not torch.equal(first[7][0], other[7][0])
        with pytest.raises(IndexError):
            first[len(first)]

    @pytest.mark.parametrize(("text", "said"), [
        ("", "names no input: write its shape, as in 3xSxS"),
        ("-> int64[10]", "names no input"),
        ("3xSxS,", "has an empty input"),
        ("3xSxS ->", "has an empty input"),
        ("3xSxS -> S -> S", "has two ->"),
        ("3x224x224", "has no S"),
        ("3 -> S", "has no S"),
        ("3xsxS", "has 's' in '3xsxS', which is neither a number, S nor B"),
        ("float16 S", "has 'float16 S' in 'float16 S', which is neither a number, S nor B: write a shape as in 3xSxS, "
                      "and before it one of float32, int64, int32, uint8, bool"),
        ("0xS", "has an axis of 0"),
        ("9999999999xS", "has an axis of 9999999999"),
        ("BxSxB", "has more than one B"),
        ("x=S, S", "has an input without a name after one with a name"),
        ("x=S, x=S", "has the name x twice"),
        ("3x=S", "has the name '3x', which no argument can have"),
        ("x=, S", "has no shape for x"),
        ("int64 S", "has no range in 'int64 S': write how many values there are, as in int64[1000]"),
        ("int64[] S", "has the range []"),
        ("int64[a:b] S", "has the range [a:b]"),
        ("int64[1:2:3] S", "has the range [1:2:3]"),
        ("int64[1.5] S", "has the range [1.5]"),
        ("int64[5:5] S", "has the range [5:5], which no int64 can be in"),
        ("uint8[257] S", "has the range [257], which no uint8 can be in"),
        ("S -> y=int64[3]", "names the target after -> (y)"),
    ])
    def test_what_is_no_spec_gets_one_line(self, text: str, said: str) -> None:
        with pytest.raises(UserError) as refused:
            parse_input_spec(text)
        assert str(refused.value).startswith(f"--input-spec {said}")

    @given(st.text(st.sampled_from(string.printable + "SBx[]:=->,"), max_size=40))
    def test_any_text_is_a_spec_or_refused(self, text: str) -> None:
        try:
            spec = parse_input_spec(text)
        except UserError:
            return
        assert parse_input_spec(spec.text) == spec

    @given(st.lists(st.tuples(st.sampled_from(TYPES), st.lists(st.sampled_from([2, 3, "S", "B"]), min_size=1,
                                                               unique=True)), min_size=1, max_size=3))
    def test_what_is_written_is_read(self, inputs: list[tuple[str, list[int | str]]]) -> None:
        inputs = [*inputs, ("float32", ["S"])]
        ranges = {"float32": "[-1:2]", "bool": "[0:1]"}
        text = ", ".join(f"a{number}={kind}{ranges.get(kind, '[3:7]')} {'x'.join(map(str, axes))}"
                         for number, (kind, axes) in enumerate(inputs))
        bounds = {"float32": (-1, 2), "bool": (0, 1)}
        expected = [
            TensorSpec(f"a{number}", kind, bounds.get(kind, (3, 7)), tuple(axes if "B" in axes else ["B", *axes]))
            for number, (kind, axes) in enumerate(inputs)
        ]
        assert parse_input_spec(text) == InputSpec(text, tuple(expected), None)


class TestTheLoss:
    logits, labels = torch.randn(4, 10), torch.tensor([1, 2, 3, 4])

    def test_it_is_the_models_own_where_it_gives_one(self) -> None:
        own = torch.tensor(7.0)
        outputs: Any
        for outputs in ({"loss": own, "logits": self.logits}, SimpleNamespace(loss=own),
                        namedtuple("Outputs", "loss")(own)):
            assert default_loss(outputs, self.labels) == (7.0, "the model's own, outputs.loss")

    @pytest.mark.parametrize("outputs", ["tensor", "tuple", "mapping", "object"])
    def test_it_compares_the_main_output_with_labels(self, outputs: str) -> None:
        holder: Any = {"tensor": self.logits, "tuple": (torch.arange(3), self.logits, torch.zeros(3)),
                       "mapping": {"hidden": torch.zeros(3), "logits": self.logits},
                       "object": SimpleNamespace(hidden=torch.zeros(3), logits=self.logits)}[outputs]
        assert main_output(holder) is self.logits
        loss, said = default_loss(holder, self.labels.to(torch.uint8))
        assert loss == functional.cross_entropy(self.logits, self.labels)
        assert said == "cross_entropy against the target"

    def test_classes_stand_last_in_text_and_second_in_pictures(self) -> None:
        words, tags = torch.randn(4, 6, 10), torch.randint(10, (4, 6))
        assert cross_entropy(words, tags) == pytest.approx(functional.cross_entropy(words.transpose(1, 2), tags))
        pixels, classes = torch.randn(4, 10, 6, 5), torch.randint(10, (4, 6, 5))
        assert cross_entropy(pixels, classes) == functional.cross_entropy(pixels, classes)

    def test_it_compares_numbers_by_their_squares_only_in_the_same_shape(self) -> None:
        target = torch.randn(4, 10)
        assert default_loss(self.logits, target) == (functional.mse_loss(self.logits, target),
                                                     "mse_loss against the target")
        with pytest.raises(ValueError, match=r"the output has the shape \(4, 10\), but the target \(4,\)"):
            default_loss(self.logits, torch.randn(4))

    def test_it_is_the_mean_of_the_outputs_where_nothing_else_tells(self) -> None:
        loss, said = default_loss([torch.full((3, 3), 2.0), {"a": torch.full((5,), 4.0)}, torch.arange(3)], None)
        assert (loss, said) == (3.0, "mean of all floating outputs")
        with pytest.raises(TypeError, match="the model returned a list without a floating tensor"):
            default_loss([torch.arange(3)], None)

    def test_it_can_be_named(self) -> None:
        with_target, without = parse_input_spec("S -> int64[10]"), parse_input_spec("S")
        loss, said = named_loss("multi_margin_loss", with_target)((self.logits, 0), self.labels)
        assert (loss, said) == (functional.multi_margin_loss(self.logits, self.labels), "multi_margin_loss")
        own = f"{__name__}:squared"
        assert named_loss(own, with_target)(self.logits, self.labels)[0] == squared(self.logits, self.labels)
        assert named_loss(own, without)(self.logits, None) == (squared(self.logits), own)

    @pytest.mark.parametrize(("name", "spec", "said"), [
        ("cross_entrpy", "S -> int64[3]", "--loss: PyTorch has no 'cross_entrpy': did you mean cross_entropy"),
        ("relu", "S", "--loss: PyTorch has no 'relu': choose from "),
        ("mse_loss", "S", "--loss mse_loss compares the outputs with a target: name one in --input-spec"),
        (f"{__name__}:NOT_A_MODEL", "S", f"--loss: {__name__}:NOT_A_MODEL is a int object"),
    ])
    def test_a_wrong_name_gets_one_line(self, name: str, spec: str, said: str) -> None:
        with pytest.raises(UserError) as refused:
            named_loss(name, parse_input_spec(spec))
        assert str(refused.value).startswith(said)

    def test_what_is_no_number_is_refused(self) -> None:
        loss = named_loss(f"{__name__}:main_output", parse_input_spec("S"))
        with pytest.raises(TypeError, match=r"main_output is not one number but a tensor \(4, 10\)"):
            loss(self.logits, None)


class TestTheWorkload:
    def test_it_trains_the_model_with_its_arguments(self) -> None:
        workload = made(arguments="width=6, num_classes=10", optimizer="AdamW")
        loop = Loop(case(workload))
        before = [parameter.clone() for parameter in loop.model.parameters()]
        phases = HostPhases()
        with phases:
            step = loop.iteration(phases)
        assert sum(parameter.numel() for parameter in loop.model.parameters()) == 3 * 6 * 9 + 6 + 6 * 10 + 10
        assert step.loss is not None
        assert step.loss.item() == pytest.approx(functional.cross_entropy(step.outputs, step.batch[1]).item())
        assert not any(map(torch.equal, before, loop.model.parameters()))
        assert [one.phase for one in phases.take()[0].intervals] == ["data", "forward", "loss", "backward", "update"]
        assert type(loop.optimizers[0]) is torch.optim.AdamW
        assert loop.workload.facts() == {
            "model": f"{__name__}:Pictures", "arguments": {"width": "6", "num_classes": "10"},
            "inputs": "3xSxS -> int64[10]", "loss": "cross_entropy against the target",
            "optimizer": "AdamW, learning rate 0.01"}

    @pytest.mark.parametrize("spec", ["int64[50] S, int64[1:2] S", "int64[50] S, attention_mask=bool S",
                                      "attention_mask=int64[1:2] S, input_ids=int64[50] S"])
    def test_inputs_are_passed_by_position_and_name(self, spec: str) -> None:
        loop = Loop(case(made("Speaking", spec), "infer"))
        outputs = loop.iteration(HostPhases()).outputs
        assert outputs["logits"].shape == (4, 8, 50)
        assert "loss" not in loop.workload.facts()

    def test_labels_by_name_give_the_models_own_loss(self) -> None:
        spec = "input_ids=int64[50] S, attention_mask=int64[1:2] S, labels=int64[50] S"
        loop = Loop(case(made("Speaking", spec)))
        step = loop.iteration(HostPhases())
        assert step.loss is step.outputs["loss"]
        assert loop.workload.facts()["loss"] == "the model's own, outputs.loss"

    @pytest.mark.parametrize("precision", ["bf16", "pure-bf16"])
    def test_it_runs_in_lower_precision(self, precision: str) -> None:
        step = Loop(case(made(), precision=precision)).iteration(HostPhases())
        assert step.outputs.dtype == torch.bfloat16
        assert step.batch[1].dtype == torch.int64

    def test_flop_are_counted_though_making_the_model_reads_numbers(self) -> None:
        rows, facts = flop_pass(case(made("ReadsNumbers", "S")), [torch.zeros(4, 8)])
        forward = {row["layer"]: row["flop"] for row in rows if row["phase"] == "forward" and row["flop"]}
        assert forward == {"first": 2 * 4 * 8 * 8, "second": 2 * 4 * 8 * 8}
        assert sum(row["flop"] for row in rows if row["phase"] == "backward" and row["flop"]) == 3 * 2 * 4 * 8 * 8
        assert facts == FlopPass("ok", recomputed_flop=0.0)

    @pytest.mark.parametrize(("spec", "kind"), [("3xSxS", "image"), ("int64[9] S", "sequence"), ("S", "other"),
                                                ("16xS", "other"), ("3xSxS, int64[9] S", "image")])
    def test_its_kind_of_input_follows_from_the_spec(self, spec: str, kind: str) -> None:
        assert made(spec=spec).input_kind == kind

    def test_the_input_size_is_the_users_to_tell(self) -> None:
        with pytest.raises(UserError, match="Pictures has no default input size: give values of S"):
            _ = made().default_input_size

    @pytest.mark.parametrize("loss", [None, "cross_entropy", f"{__name__}:squared"])
    def test_ranks_can_receive_it(self, loss: str | None) -> None:
        outputs, target = torch.arange(6.0).reshape(2, 3), torch.tensor([0, 2])
        workload = made(loss=loss)
        received = pickle.loads(pickle.dumps(workload))
        assert received.loss_of(outputs, target)[0] == workload.loss_of(outputs, target)[0]

    @pytest.mark.parametrize(("target", "said"), [
        ("Pictures", "--model: 'Pictures' is not of the form package.module:name"),
        ("nowhere_at_all:x", "--model: there is no module nowhere_at_all: install it, or run charact in the directory"),
        (f"{__name__}:Picture", f"--model: {__name__} has no Picture: did you mean Pictures"),
        (f"{__name__}:Pictures.widht", f"--model: {__name__} has no Pictures.widht"),
        (f"{__name__}:NOT_A_MODEL", f"--model: {__name__}:NOT_A_MODEL is a int object, neither a torch.nn.Module"),
        (f"{__name__}:Path", f"--model: {__name__}:Path is a class Path, neither a torch.nn.Module class"),
        (f"{__name__}:A_MODEL", f"--model: {__name__}:A_MODEL is a model already"),
    ])
    def test_a_wrong_name_gets_one_line(self, target: str, said: str) -> None:
        with pytest.raises(UserError) as refused:
            own_model(target, "", parse_input_spec("3xSxS"), None, "SGD", 0.01)
        assert str(refused.value).startswith(said)

    @pytest.mark.parametrize(("source", "said"), [
        ("import not_there_either", "imports not_there_either, which is not installed: install it"),
        ("1 / 0", "failed: ZeroDivisionError: division by zero"),
        ("raise SystemExit(2)", "ended the program: put its code below if __name__ == '__main__'"),
        ("def f(:", "failed: SyntaxError: "),
    ])
    def test_a_module_that_cannot_be_imported_gets_one_line(self, source: str, said: str, tmp_path: Path,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))
        (tmp_path / "breaks_at_import.py").write_text(source)
        with pytest.raises(UserError) as refused:
            own_model("breaks_at_import:f", "", parse_input_spec("S"), None, "SGD", 0.01)
        assert said in str(refused.value)

    def test_an_unknown_optimizer_gets_one_line(self) -> None:
        with pytest.raises(UserError, match="--optimizer: PyTorch has no 'adamw': did you mean AdamW"):
            made(optimizer="adamw")

    def test_what_is_no_model_fails_when_it_is_made(self) -> None:
        workload = made("a_number")
        with pytest.raises(TypeError, match=r"test_user_model:a_number returned a int, not a torch\.nn\.Module"):
            workload.model(workload.dataset(8, DataRequest()))


@pytest.mark.parametrize(("text", "values"), [
    ("", {}), ("depth=50", {"depth": 50}), ("a=1, b=-.5,c=[2, 2], d='x,y=z', e=None, f=tiny",
                                            {"a": 1, "b": -0.5, "c": [2, 2], "d": "x,y=z", "e": None, "f": "tiny"}),
])
def test_arguments_are_those_of_a_call(text: str, values: dict[str, Any]) -> None:
    assert call_arguments(text, "--model-args") == values


@pytest.mark.parametrize("text", ["50", "a", "a=", "a=b()", "a=1 b=2", "**a", "a=1)(b=2", "a=1,a=2", "a=bert-base"])
def test_what_is_no_argument_gets_one_line(text: str) -> None:
    with pytest.raises(UserError, match=r"--model-args: .* is not of the form name=value,name=value"):
        call_arguments(text, "--model-args")
