"""Reader of `torch.export.save` files that runs no code from the file.

`torch.export.load` (2.13) unpickles constants and weights of tensor subclasses, may read example inputs with
`weights_only=False`, loads compiled libraries, and passes strings to SymPy, which evaluates them. The graph itself is
JSON, and most tensors are plain bytes: this module reads these and rejects the rest.
"""

import io
import math
import os
import pickle
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from charact.bricks.aten import check_arguments
from charact.bricks.suite.brick import MOST_FILE_BYTES, strict_json
from charact.bricks.suite.captured_graph import ITEM_BYTES, Json, Layer
from charact.core.bounded_reading import check_declared
from charact.core.errors import UserError
from charact.execution.out_of_memory import host_memory_guard

_FORMAT = 8
"""Major version of the graph format that PyTorch 2.13 writes."""
_OPERATOR = re.compile(r"torch\.ops\.(aten\.\w+\.\w+)")
_KINDS = {"parameter": ("weight", "parameter_name"), "buffer": ("buffer", "buffer_name"),
          "tensor_constant": ("constant", "tensor_constant_name"), "user_input": ("input", "")}
_POSITIONAL = 1
MOST_BYTES = 32 * 2**30
"""Maximum unpacked size of an archive (bytes)."""


@dataclass(frozen=True)
class SavedModel:
    """Graph and tensors of a file."""

    layers: list[Layer]
    leaves: dict[int, tuple[str, Tensor]]
    """Kind and tensor of each leaf; for inputs, the example inputs of the export."""
    inputs: list[int]
    outputs: list[int]


def read_saved(path: Path) -> SavedModel:
    """Read the model of a file."""
    if not os.path.isfile(path):
        raise UserError(f"there is no file {path}: name one that torch.export.save wrote")
    try:
        with host_memory_guard(), zipfile.ZipFile(path) as archive:
            check_declared(_unpacked_bytes(archive), path, MOST_BYTES)
            return _Reader(archive, path).read()
    except Unreadable as error:
        raise UserError(f"cannot read {path}: {error}") from error
    except PermissionError as error:
        raise UserError(f"no permission to read {path}: name another file, or change its permissions") from error
    except (zipfile.BadZipFile, RecursionError, OverflowError, MemoryError, KeyError, TypeError, ValueError, IndexError,
            AttributeError, RuntimeError, EOFError, OSError, zlib.error) as error:
        raise UserError(f"{path} is not an exported program, or is damaged: write it with torch.export.save of "
                        "PyTorch 2.9 or later") from error


class _Reader:
    def __init__(self, archive: zipfile.ZipFile, path: Path) -> None:
        self._archive, self._path = archive, path
        self._root = archive.namelist()[0].partition("/")[0]
        self._numbers: dict[str, int] = {}

    def read(self) -> SavedModel:
        model = self._json("models/model.json")
        version = model["schema_version"]["major"]
        if version != _FORMAT:
            raise Unreadable(f"its format version is {version}, charact reads {_FORMAT}: save it with PyTorch 2.13")
        graph, signature = model["graph_module"]["graph"], model["graph_module"]["signature"]
        stored = self._tensors("weights") | self._tensors("constants")
        leaves: dict[int, tuple[str, Tensor]] = {}
        types = []
        for spec in signature["input_specs"]:
            (input_kind, content), = spec.items()
            if input_kind == "constant_input":  # a flag or None, which the graph inlines
                continue
            if input_kind not in _KINDS:
                raise Unreadable(f"it has an input of the kind {input_kind}, which bricks cannot hold")
            kind, key = _KINDS[input_kind]
            name = content["arg"]["name"] if key else _tensor_name(content["arg"])
            if name is None:  # a number or None, which the graph inlines
                continue
            value = self._new(name)
            if kind == "input":
                types.append((value, graph["tensor_values"][name]))
            else:
                leaves[value] = (kind, stored[content[key]])
        leaves |= self._examples(types)
        layers = [layer for node in graph["nodes"] if (layer := self._layer(node)) is not None]
        given = [spec["user_output"]["arg"] for spec in signature["output_specs"] if "user_output" in spec]
        outputs = [self._numbers[name] for arg in given if (name := _tensor_name(arg)) is not None]
        return SavedModel(layers, leaves, [value for value, _ in types], outputs)

    def _layer(self, node: Json) -> Layer | None:
        target = _OPERATOR.fullmatch(node["target"])
        if target is None:
            raise Unreadable(f"its operator {node['target']} is not a PyTorch operator")
        if target[1].startswith("aten._assert"):
            return None
        args = [argument(one["arg"], self._numbers) for one in node["inputs"] if one["kind"] == _POSITIONAL]
        kwargs = {one["name"]: argument(one["arg"], self._numbers) for one in node["inputs"]
                  if one["kind"] != _POSITIONAL}
        outputs: list[int | None] = []
        several = len(node["outputs"]) > 1
        for one in node["outputs"]:
            (kind, content), = one.items()
            if kind == "as_tensors":
                several = True
                outputs += [self._new(each["name"]) for each in content]
            elif kind == "as_tensor":
                outputs.append(self._new(content["name"]))
            elif kind == "as_none":
                outputs.append(None)
            else:
                raise Unreadable(f"its operator {target[1]} returns a number that the model reads")
        layer = Layer(target[1], args, kwargs, tuple(outputs or [None]), several)
        check_arguments(layer)
        return layer

    def _new(self, name: str) -> int:
        self._numbers[name] = len(self._numbers)
        return self._numbers[name]

    def _json(self, name: str) -> Json:
        info = self._archive.getinfo(f"{self._root}/{name}")
        check_declared(info.file_size, f"{name} of {self._path}", MOST_FILE_BYTES)
        return strict_json(self._archive.read(info))

    def _tensors(self, kind: str) -> dict[str, Tensor]:
        """Return the tensors of a folder by qualified name; tensors that shared a storage share it again."""
        storages: dict[str, Tensor] = {}
        found: dict[str, Tensor] = {}
        for name, entry in self._json(f"data/{kind}/model_{kind}_config.json")["config"].items():
            place, meta = entry["path_name"], entry["tensor_meta"]
            if entry["use_pickle"] or meta is None or "/" in place:
                raise Unreadable(f"its {name} would have to be unpickled, which could run code: save plain tensors")
            if place not in storages:
                raw = bytearray(self._archive.read(f"{self._root}/data/{kind}/{place}"))
                storages[place] = torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
            flat = storages[place].view(getattr(torch, DTYPES[meta["dtype"]]))
            offset, = sizes([meta["storage_offset"]])
            found[name] = flat.as_strided(sizes(meta["sizes"]), sizes(meta["strides"]), offset)
        return found

    def _examples(self, types: list[tuple[int, Json]]) -> dict[int, tuple[str, Tensor]]:
        """Return the example inputs of the export, or synthetic ones if the file has none as plain tensors."""
        declared_types = [_type_of_meta(meta) for _, meta in types]
        declared = sum(math.prod(shape) * ITEM_BYTES[dtype] for shape, dtype in declared_types)
        check_declared(declared, self._path, MOST_BYTES)
        examples: list[Any] = []
        name = f"{self._root}/data/sample_inputs/model.pt"
        if name in self._archive.namelist():
            content = self._archive.read(name)
            if zipfile.is_zipfile(io.BytesIO(content)):
                with zipfile.ZipFile(io.BytesIO(content)) as inner:
                    check_declared(_unpacked_bytes(inner), self._path, MOST_BYTES)
            try:
                loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            except pickle.UnpicklingError as error:
                raise Unreadable("its example inputs would have to be unpickled, which could run code: export it with "
                                 "plain tensors") from error
            examples = [leaf for leaf in tree_leaves(loaded) if isinstance(leaf, Tensor)]
        if [_type_of(each) for each in examples] != declared_types:
            generator = torch.Generator().manual_seed(0)
            examples = [_synthetic_input(*declared_type, generator) for declared_type in declared_types]
        return {value: ("input", example) for (value, _), example in zip(types, examples, strict=True)}


def _unpacked_bytes(archive: zipfile.ZipFile) -> int:
    """Return the unpacked bytes that an archive declares; `zipfile` never unpacks more."""
    return sum(info.file_size for info in archive.infolist())


def _tensor_name(arg: Json) -> str | None:
    return arg["as_tensor"]["name"] if "as_tensor" in arg else None


def _type_of(tensor: Tensor) -> tuple[tuple[int, ...], str]:
    return tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")


def _type_of_meta(meta: Json) -> tuple[tuple[int, ...], str]:
    return sizes(meta["sizes"]), DTYPES[meta["dtype"]]


def _synthetic_input(shape: tuple[int, ...], dtype: str, generator: torch.Generator) -> Tensor:
    """Return normal random values, or zeros for integers, since any other may be out of range as an index."""
    kind: torch.dtype = getattr(torch, dtype)
    if kind.is_floating_point:
        return torch.randn(shape, generator=generator).to(kind)
    return torch.zeros(shape, dtype=kind)


DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64",
          10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 29: "float8_e4m3fn", 30: "float8_e5m2"}
"""Dtypes by their numbers in the format."""
_MEMORY_FORMATS = {1: "contiguous_format", 2: "channels_last", 3: "channels_last_3d", 4: "preserve_format"}
_STRIDED = 7
_PLAIN = {"as_int", "as_ints", "as_bool", "as_bools", "as_string", "as_strings", "as_int_lists"}
_FLOATS = {"Infinity": "inf", "-Infinity": "-inf", "NaN": "nan"}


class Unreadable(Exception):
    """A part of a file that charact does not read; the message describes it."""


def argument(entry: Json, numbers: Mapping[str, int]) -> Json:
    """Convert one argument.

    Args:
        entry: a dict with one key, the argument's kind.
        numbers: value indices by tensor name.

    Raises:
        Unreadable: captured layers have no argument of this kind.
    """
    (kind, content), = entry.items()
    if kind in _PLAIN:
        return content
    if kind == "as_none":
        return None
    if kind == "as_tensor":
        return {"value": numbers[content["name"]]}
    if kind == "as_tensors":
        return [{"value": numbers[each["name"]]} for each in content]
    if kind in ("as_optional_tensor", "as_sym_int", "as_sym_float", "as_sym_bool"):
        return argument(content, numbers)
    if kind in ("as_optional_tensors", "as_sym_ints", "as_sym_floats", "as_sym_bools"):
        return [argument(each, numbers) for each in content]
    if kind in ("as_float", "as_floats"):
        return _float(content) if kind == "as_float" else [_float(each) for each in content]
    return _of_torch(kind, content)


def sizes(entry: Sequence[Json]) -> tuple[int, ...]:
    """Convert sizes or strides.

    Raises:
        Unreadable: one is symbolic.
    """
    if any("as_int" not in each for each in entry):
        raise Unreadable("it was exported with dynamic sizes: export it with static sizes")
    return tuple(int(each["as_int"]) for each in entry)


def _of_torch(kind: str, content: Json) -> Json:
    if kind == "as_scalar_type":
        return {"dtype": DTYPES[content]}
    if kind == "as_memory_format":
        return {"memory_format": _MEMORY_FORMATS[content]}
    if kind == "as_layout" and content == _STRIDED:
        return {"layout": "strided"}
    if kind == "as_device":
        return {"device": True}
    if kind == "as_complex":
        return {"complex": [content["real"], content["imag"]]}
    if kind == "as_name":
        raise Unreadable("it was exported with dynamic sizes: export it with static sizes")
    raise Unreadable(f"an operator has an argument of the kind {kind}, which bricks cannot hold")


def _float(content: Json) -> Json:
    """Convert a float; the format writes infinities and NaN as strings."""
    return {"float": _FLOATS[content]} if isinstance(content, str) else content
