"""Conversion of operator arguments from the format of `torch.export.save` to those of captured layers."""

from collections.abc import Mapping, Sequence

from charact.bricks.captured_graph import Json

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
