"""Capturing with torch.export, which runs the model once on fake tensors and keeps composite operators whole."""

import contextlib
import io
import logging
import operator
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from charact.bricks.capture.draft import Draft
from charact.bricks.capture.sources import Program
from charact.bricks.captured_graph import CaptureError
from charact.execution.case_outcome import one_line

_KINDS = {InputKind.USER_INPUT: "input", InputKind.PARAMETER: "weight", InputKind.BUFFER: "buffer",
          InputKind.CONSTANT_TENSOR: "constant"}
_MODEL = "model"
"""Attribute of `Program` that holds the model."""


@dataclass(frozen=True)
class _Value:
    """A value in the arguments of a node."""

    index: int


def exported(program: Program, *, training: bool) -> Draft:
    """Export a program and return its draft; the program is not changed.

    Raises:
        CaptureError: PyTorch cannot export it, or the graph holds something that cannot be stored.
    """
    try:
        with _quiet(), warnings.catch_warnings(), torch.set_grad_enabled(training), program.real_run():
            warnings.simplefilter("ignore")  # about weight lists of recurrent layers, and assigned attributes
            found = torch.export.export(program, tuple(program.inputs), strict=False)
    except Exception as error:  # torch.export raises many types
        raise CaptureError(one_line(error)) from error
    return _Reader(found, program.inputs).draft


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress PyTorch's log messages and graph dumps about failed exports."""
    logs = [logging.getLogger(name) for name in ("torch.export", "torch.fx.experimental.symbolic_shapes")]
    were_off = [log.disabled for log in logs]
    for log in logs:
        log.disabled = True
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        for log, was_off in zip(logs, were_off, strict=True):
            log.disabled = was_off


class _Reader:
    """Reads a program's graph into a draft."""

    def __init__(self, program: ExportedProgram, inputs: Sequence[Tensor]) -> None:
        self.draft = Draft()
        signature = program.graph_signature
        given = iter(inputs)
        arguments = []
        for spec in signature.input_specs:
            if spec.kind not in _KINDS:
                raise CaptureError(f"its input {spec.target} is a {spec.kind.name.lower()}")
            tensor = next(given) if spec.kind == InputKind.USER_INPUT else _leaf(program, spec.target)
            arguments.append(_Value(self.draft.leaf(_KINDS[spec.kind], tensor)))
        results = self._walk(program.graph_module, arguments, gradients=True)
        made = [result for result, spec in zip(results, signature.output_specs, strict=True)
                if spec.kind == OutputKind.USER_OUTPUT]
        # `Program` returns two lists, which the export joins.
        num_outputs = len(_children(_children(program.call_spec.out_spec)[0])) if program.call_spec.out_spec else 0
        numbers = [result.index for result in made]
        self.draft.outputs, self.draft.kept = numbers[:num_outputs], numbers[num_outputs:]

    def _walk(self, module: fx.GraphModule, arguments: Sequence[Any], *, gradients: bool) -> list[Any]:
        """Add a graph's layers to the draft; return the graph's results."""
        found: dict[fx.Node, Any] = {}
        rest = iter(arguments)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                found[node] = next(rest)
            elif node.op == "get_attr":
                found[node] = getattr(module, node.target)
            elif node.op == "output":
                return list(fx.map_arg(node.args[0], found.__getitem__))
            else:
                found[node] = self._call(node, found, gradients=gradients)
        raise AssertionError("a graph without an output")

    def _call(self, node: fx.Node, found: dict[fx.Node, Any], *, gradients: bool) -> Any:
        args: Any = fx.map_arg(node.args, found.__getitem__)
        kwargs: Any = fx.map_arg(node.kwargs, found.__getitem__)
        target: Any = node.target
        if target is operator.getitem:
            return args[0][args[1]]
        if target is torch.ops.higher_order.wrap_with_set_grad_enabled:
            enabled, module, *rest = args
            return self._walk(module, rest, gradients=gradients and enabled)
        if isinstance(target, torch._ops.HigherOrderOperator):
            raise CaptureError(f"its {target} holds a nested graph")
        made = node.meta.get("val")
        if isinstance(made, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise CaptureError(f"its operator {target} returns a number that the model reads{_place(node)}")
        numbers = self.draft.add(target, args, kwargs, made, index_of=lambda value: value.index, value_type=_Value,
                                 module=_module_of(node))
        if not gradients:
            self.draft.without_gradient.update(number for number in numbers if number is not None)
        values = [None if number is None else _Value(number) for number in numbers]
        return values if isinstance(made, (list, tuple)) else values[0]


def _leaf(program: ExportedProgram, name: str | None) -> Tensor:
    assert name is not None
    found: Tensor = program.state_dict[name] if name in program.state_dict else program.constants[name]
    return found


def _module_of(node: fx.Node) -> str:
    """Return the qualified name, within the model, of the module that a node ran in."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    name = stack[-1][0].partition("@")[0] if stack else ""  # "name@call"
    return name.removeprefix(_MODEL).removeprefix(".")


def _place(node: fx.Node) -> str:
    """Return the innermost line of the model's code that led to a node."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip()]
    return f": {lines[-1]}" if lines else ""


def _children(spec: Any) -> list[Any]:
    """Return the parts of a tree's description; `children` is a method since PyTorch 2.10."""
    found = getattr(spec, "children", None)
    return list(spec.children_specs if found is None else found())
