"""Layers of the kernels that torch.compile generates or calls, from the origins that PyTorch's compiler keeps."""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from itertools import takewhile
from typing import Any

import torch
from torch import nn
from torch._C._profiler import _RecordFunctionFast
from torch.autograd import profiler

from charact.core.trace_marks import KERNEL_PREFIX

_SETTINGS = {
    "trace.provenance_tracking_level": 1,
    # A graph from this cache is not generated again: it would have no marks, or those of an equal graph elsewhere.
    "fx_graph_cache": False,
}


@contextlib.contextmanager
def kernel_marks(model: nn.Module) -> Iterator[bool]:
    """Annotate kernels with their layers in all code that is compiled inside; yield whether PyTorch keeps origins.

    A kernel belongs to the innermost layer that contains all operations of which it computes a part. Backward
    operations belong to the layer of their forward operation. Sums of gradients do not count, nor do copies by which
    the compiler updates buffers: they belong to no layer.

    *Error*: a kernel that computes values of an earlier layer again, or a gradient of the next one, belongs to a layer
    that contains both. PyTorch keeps compiled kernels on disk, but whole graphs are not read from there: a model that
    was compiled before takes longer (Llama of 4 layers in training, on 2 cores: 24 s instead of 6 s).
    """
    from torch._inductor import config, debug
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    from torch._inductor.virtualized import V

    generator: Any = PythonWrapperCodegen
    write_handle = getattr(generator, "write_provenance_debug_handle", None)
    if write_handle is None or not hasattr(config.trace, "provenance_tracking_level"):
        yield False
        return
    names = {str(id(module)): name for name, module in model.named_modules()}

    def write_mark(wrapper: Any, kernel: str, handle: int | None = None) -> None:
        write_handle(wrapper, kernel, handle)
        origins = set(debug._inductor_triton_kernel_to_post_grad_node_info.get(f"{kernel}:{handle}", ()))
        # Of an operator that is called as it is, origins may also be those of its inputs, which precede its own node.
        own = [node.name for node in V.graph.graph.nodes
               if node.name in origins and f"torch.ops.{node.target}" == kernel]
        layer = layer_of(V.graph.graph, own[-1:] or origins, names)
        if layer and not V.graph.cpp_wrapper:
            wrapper.add_import_once(f"from {__name__} import mark_kernel")
            wrapper.writeline(f"mark_kernel({layer!r})")

    generator.write_provenance_debug_handle = write_mark
    try:
        with config.patch(_SETTINGS):
            yield True
    finally:
        generator.write_provenance_debug_handle = write_handle


def mark_kernel(layer: str) -> None:
    """Annotate the next kernel with its layer; generated code calls it. Without a profiler it takes some 30 ns."""
    if profiler._is_profiler_enabled:
        with _RecordFunctionFast(KERNEL_PREFIX + layer):
            pass


def layer_of(graph: torch.fx.Graph, origins: Collection[str], names: Mapping[str, str]) -> str | None:
    """Return the innermost layer that contains all origins of a kernel; None if there is none.

    `origins`: names of nodes of the graph. `names`: qualified names of modules by their identity.
    """
    own = ""
    inner: list[str | None] = []
    for node in graph.nodes:
        stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
        if stack:
            # The last entry is the innermost module: its identity and call, and its path from the compiled function.
            key, (path, _) = list(stack.items())[-1]
            layer, suffix = names.get(key.partition("@")[0]), f".{path.partition('.')[2]}"
            if layer is not None and layer.endswith(suffix):
                own = layer.removesuffix(suffix)
        elif "fwd_nn_module_stack" not in node.meta and (
                node.meta.get("partitioner_tag") == "is_backward" or node.target is torch.ops.aten.copy_.default):
            continue
        else:
            layer = ""
        if node.name in origins:
            inner.append(layer)
    paths = [(layer or own).split(".") for layer in inner if layer is not None]
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
    return ".".join(parts[0] for parts in shared) or None
