"""Atomic writing of tensor files, and checks of untrusted ones before PyTorch or safetensors reads them.

`torch.load` with `weights_only` runs no code of a file, but a crafted file can still end the process (a deeply nested
key overflows the stack), use any amount of memory (`bytearray(2**40)`), or be passed to `tarfile`. So the pickle is
first interpreted without creating values, which checks all of them and their sizes.

Sources: `torch/_weights_only_unpickler.py`, `torch/serialization.py`; the format's description in safetensors' README.
"""

import io
import json
import math
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from charact.core.archives import is_tar_header, open_zip
from charact.core.bounded_reading import check_declared, read_all
from charact.core.errors import UserError
from charact.core.files import atomic_write
from charact.core.pickles import DamagedPickle, Machine, Refused
from charact.execution.out_of_memory import is_out_of_memory

SAFETENSORS = ".safetensors"
_MOST_PICKLE_BYTES = 2**26
_MOST_HEADER_BYTES = 2**24
_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""First bytes of files that PyTorch wrote before 1.6: a pickle of a number."""
_ZIP_END, _ZIP64_LOCATOR, _ZIP64_END = struct.Struct("<4s4H2LH"), struct.Struct("<4sLQL"), struct.Struct("<4sQ2H2L4Q")
_ZIP_MAGIC = b"PK\x03\x04"
_DAMAGES = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, TypeError, RuntimeError, LookupError,
            RecursionError, DamagedPickle)

_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
"""Size of an element (bytes), by the names of types in safetensors."""
_STORAGES = {
    f"torch {kind}Storage": num_bytes for kind, num_bytes in [
        ("Byte", 1), ("Char", 1), ("Bool", 1), ("Short", 2), ("Half", 2), ("BFloat16", 2), ("Int", 4), ("Float", 4),
        ("Long", 8), ("Double", 8), ("ComplexFloat", 8), ("ComplexDouble", 16)]
} | {"torch.storage UntypedStorage": 1}
"""Size of an element (bytes), by the names of storages in pickles."""
_DTYPES = {f"torch {name}": value.itemsize for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
_CALLS = {
    "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3", "torch._utils _rebuild_parameter",
    "collections OrderedDict", "collections Counter", "torch Size", "torch device", "_codecs encode",
    "builtins set", "__builtin__ set",
}  # fmt: skip


class DamagedFileError(UserError):
    """A malformed file, or one with more than dense tensors and plain values."""


@dataclass(frozen=True)
class Outline:
    """Shape of a tensor in a file, before its values are read."""

    shape: tuple[int, ...]


def outline(path: Path, most_bytes: int) -> Any:
    """Return the structure of a file, with an `Outline` in place of each tensor; reads no tensor.

    Args:
        path: the file; one that ends in `.safetensors` is in that format, others in that of `torch.save`.
        most_bytes: limit of all tensors together, unless the user sets another.

    Raises:
        DamagedFileError: the file is damaged, or has anything but dense tensors and plain values.
    """
    if path.suffix == SAFETENSORS:
        _safetensors_reader()
    try:
        with path.open("rb") as file:
            num_bytes = file.seek(0, io.SEEK_END)
            file.seek(0)
            check_declared(num_bytes, path, most_bytes + _MOST_PICKLE_BYTES, "has")
            if path.suffix == SAFETENSORS:
                return _safetensors(file, num_bytes)
            begin = file.read(512)
            file.seek(0)
            return _zipped(file, num_bytes) if begin.startswith(_ZIP_MAGIC) else _legacy(file, begin, num_bytes)
    except Refused as error:
        raise DamagedFileError(f"{path} has more than tensors and is not read, because that could run code (its pickle "
                               f"{error}): save only model.state_dict()") from error
    except _DAMAGES as error:
        raise _damaged(path) from error
    except OSError as error:
        raise UserError(_unreadable(path, error)) from error


def read(path: Path, device: torch.device | str = "cpu") -> Any:
    """Return the content of a file that `outline` has checked.

    Files that end in `.safetensors` are memory-mapped, so that their pages are read on first use. Others are read by
    `torch.load` with `weights_only`, which creates only tensors and plain containers and runs no code.

    Raises:
        DamagedFileError: the file is damaged.
    """
    try:
        if path.suffix == SAFETENSORS:
            return _safetensors_reader()(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the pickle's protocol, which does not matter
            return torch.load(path, map_location=device, weights_only=True)
    except UserError:
        raise
    except OSError as error:
        raise UserError(_unreadable(path, error)) from error
    except Exception as error:  # damaged files raise all kinds of errors
        if is_out_of_memory(error):
            raise
        raise _damaged(path) from error


def write_tensors(content: Any, path: Path) -> None:
    """Write content for `torch.load(weights_only=True)`, atomically."""
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:
            # An error of the file system or a signal, which torch does not repeat.
            if isinstance(error.__context__, (OSError, KeyboardInterrupt)):
                raise error.__context__ from error
            raise


def _damaged(path: Path) -> DamagedFileError:
    return DamagedFileError(f"{path} is not a file of weights, or is damaged: name one from torch.save or safetensors")


def _unreadable(path: Path, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return f"{path} is not readable for you: name another file, or change its permissions"
    return f"{path} cannot be read ({(error.strerror or str(error)).lower()}): name another file"


def _safetensors_reader() -> Callable[[Path], Any]:
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise UserError('files in this format need safetensors: pip install "charact[safetensors]"') from error
    return load_file


def _safetensors(file: IO[bytes], num_bytes: int) -> dict[str, Outline]:
    """Return the outline of a safetensors file: the header's length, the header in JSON, the tensors end to end."""
    (header_bytes,) = struct.unpack("<Q", file.read(8))
    if header_bytes > min(_MOST_HEADER_BYTES, num_bytes - 8):
        raise ValueError
    header = _typed(json.loads(file.read(header_bytes), object_pairs_hook=_unique), dict)
    tensors, ranges = {}, []
    for name, facts in header.items():
        if name == "__metadata__":
            for text in _typed(facts, dict).values():
                _typed(text, str)
            continue
        shape, (begin, end) = _typed(_typed(facts, dict)["shape"], list), facts["data_offsets"]
        if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
            raise TypeError
        if end - begin != math.prod(shape) * _ITEM_BYTES[facts["dtype"]]:
            raise ValueError
        ranges.append((begin, end))
        tensors[name] = Outline(tuple(shape))
    last = 0
    for begin, end in sorted(ranges):
        if begin != last:
            raise ValueError
        last = end
    if last != num_bytes - 8 - header_bytes:
        raise ValueError
    return tensors


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError
    return dict(pairs)


def _zipped(file: IO[bytes], num_bytes: int) -> Any:
    """Return the outline of a torch.save file: an uncompressed zip archive of a pickle and the tensors' bytes.

    PyTorch and Python use different zip libraries, so the archive must be one that both read in the same way.
    """
    _check_zip_end(file, num_bytes)
    with open_zip(file) as archive:
        members = archive.infolist()
        names = [member.filename for member in members]
        if len({name.lower() for name in names}) != len(names) or len({name.partition("/")[0] for name in names}) != 1:
            raise ValueError
        if any(member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1
               or member.compress_size != member.file_size for member in members):
            raise ValueError
        sizes = {name.partition("/")[2]: member.file_size for name, member in zip(names, members, strict=True)}
        if sum(sizes.values()) > num_bytes or sizes["data.pkl"] > _MOST_PICKLE_BYTES:
            raise ValueError
        with archive.open(f"{names[0].partition('/')[0]}/data.pkl") as member:
            pickled = read_all(member, "its pickle", _MOST_PICKLE_BYTES)
    machine = _Machine(len(pickled), {name.removeprefix("data/"): size for name, size in sizes.items()
                                      if name.startswith("data/")})
    return machine.read(io.BytesIO(pickled))


def _check_zip_end(file: IO[bytes], num_bytes: int) -> None:
    """Check that a zip archive's directory is where its end record says, with nothing before or after it.

    Raises:
        ValueError: it is not; some readers would then find another directory.
    """
    def unpacked(kind: struct.Struct, place: int) -> tuple[Any, ...]:
        file.seek(max(0, place))
        return kind.unpack(file.read(kind.size))

    end = num_bytes - _ZIP_END.size
    signature, *_, list_bytes, list_place, comment_bytes = unpacked(_ZIP_END, end)
    if signature != b"PK\x05\x06" or comment_bytes:
        raise ValueError
    signature, _, place, _ = unpacked(_ZIP64_LOCATOR, end - _ZIP64_LOCATOR.size)
    if signature == b"PK\x06\x07":  # an archive of more than 4 GiB
        end -= _ZIP64_LOCATOR.size + _ZIP64_END.size
        signature, *_, list_bytes, list_place = unpacked(_ZIP64_END, end)
        if signature != b"PK\x06\x06" or place != end:
            raise ValueError
    if list_place + list_bytes != end:
        raise ValueError


def _legacy(file: IO[bytes], begin: bytes, num_bytes: int) -> Any:
    """Return the outline of a file that PyTorch wrote before 1.6: five pickles, then the tensors' bytes."""
    if begin.startswith(b"\x80") and not begin.startswith(_MAGIC):
        raise Refused("is not torch.save's")
    # PyTorch tries Python's tarfile first, which reads headers without limits.
    if not begin.startswith(_MAGIC) or is_tar_header(begin):
        raise ValueError
    stream = io.BytesIO(file.read(_MOST_PICKLE_BYTES))
    machine = _Machine(len(stream.getbuffer()), None)
    for _ in ("magic number", "version", "facts of the system"):
        machine.read(stream)
    content = machine.read(stream)
    keys = machine.read(stream)
    if {_typed(key, str) for key in _typed(keys, list)} != set(machine.storages) or (
            sum(machine.storages.values()) > num_bytes):
        raise ValueError
    return content


@dataclass(frozen=True)
class _Storage:
    num_bytes: int
    item_bytes: int


@dataclass(frozen=True)
class _Global:
    name: str


class _Machine(Machine):
    """Interpreter of a pickle from torch.save.

    Args:
        num_bytes: the pickle's size.
        records: sizes of the tensors' bytes by key; None in the older format, which has them later.
    """

    def __init__(self, num_bytes: int, records: Mapping[str, int] | None) -> None:
        super().__init__(budget_bytes=2 * num_bytes + 2**16)
        self._records = records
        self.storages: dict[str, int] = {}
        """Size in bytes of each storage in the pickle, by key."""

    def find(self, name: str) -> _Global:
        """Return the value of a name that torch.save writes for tensors and plain values."""
        if name not in _CALLS and name not in _STORAGES and name not in _DTYPES:
            raise Refused(f"names '{'.'.join(name[:60].split())}'")
        return _Global(name)

    def persistent(self, identifier: Any) -> _Storage:
        """Return a storage; the file must have its bytes."""
        kind, storage, key, location, num_elements, *view = identifier
        if kind != "storage" or type(key) is not str or type(location) is not str or len(view) > 1 or any(view):
            raise Refused("names an object that is stored elsewhere")
        if type(num_elements) is not int or num_elements < 0 or not key.isascii():
            raise ValueError
        item_bytes = _STORAGES[_typed(storage, _Global).name]
        num_bytes = num_elements * item_bytes
        # A shared storage has the same size wherever it is named.
        if self.storages.setdefault(key, num_bytes) != num_bytes:
            raise ValueError
        if self._records is not None and self._records[key] != num_bytes:
            raise ValueError
        return _Storage(num_bytes, item_bytes)

    def call(self, function: Any, arguments: Any) -> Any:
        """Return the value of a tensor or container."""
        name = function.name if isinstance(function, _Global) else None
        match name:
            case "torch._utils _rebuild_tensor_v2" | "torch._utils _rebuild_tensor_v3":
                storage, offset, shape, strides, requires_grad, hooks, *rest = arguments
                item_bytes = _typed(storage, _Storage).item_bytes
                if name.endswith("v3"):
                    item_bytes = _DTYPES[_typed(rest.pop(0), _Global).name]
                if type(requires_grad) is not bool or hooks or len(rest) > 1 or any(rest):
                    raise ValueError
                return _tensor(storage.num_bytes // item_bytes, offset, shape, strides)
            case "torch._utils _rebuild_parameter":
                tensor, requires_grad, hooks = arguments
                if not isinstance(tensor, Outline) or type(requires_grad) is not bool or hooks:
                    raise ValueError
                return tensor
            case "collections OrderedDict" if arguments == ():
                return {}
            case "collections Counter":
                (counts,) = arguments
                return dict(_typed(counts, dict))
            case "builtins set" | "__builtin__ set":
                (values,) = arguments
                return [self.key(value) for value in _typed(values, list)]
            case "torch Size":
                (numbers,) = arguments
                return tuple(_typed(number, int) for number in _typed(numbers, tuple))
            case "torch device":
                return [_typed(argument, (str, int)) for argument in arguments]
            case "_codecs encode":  # bytes
                text, encoding = arguments
                if encoding != "latin1":
                    raise ValueError
                self.spend(len(_typed(text, str)))
                return text.encode("latin-1")
        raise Refused("calls what is no function")

    def build(self, made: Any, state: Any) -> None:
        """Drop the version metadata of a state dict; any other attribute could replace a method."""
        if not (isinstance(made, dict) and isinstance(state, dict) and state.keys() == {"_metadata"}):
            raise Refused("sets the state of an object without one")


def _typed(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError
    return value


def _tensor(num_elements: int, offset: Any, shape: Any, strides: Any) -> Outline:
    """Return a tensor, which must be within the elements of its storage.

    Raises:
        TypeError: its parts have wrong types.
        ValueError: it exceeds its storage.
    """
    numbers = (offset, *_typed(shape, tuple), *_typed(strides, tuple))
    if any(type(number) is not int for number in numbers):
        raise TypeError
    if len(shape) != len(strides) or min(numbers) < 0 or max(numbers) >= 2**63:
        raise ValueError
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if (0 not in shape and last >= num_elements) or math.prod(shape) >= 2**63:
        raise ValueError
    return Outline(shape)
