"""Restricted reading of CIFAR-10's pickles: dictionaries of texts, numbers, lists and arrays of bytes.

Supports pickles of Python 2 (protocol 2) and of Python 3 (protocols 2 to 5) with any NumPy. Nothing is named but what
NumPy writes for arrays; the files are compared with their published checksums before.

Source: "Restricting Globals" in the documentation of Python's `pickle`; `__reduce__` of NumPy's arrays and types.
"""

import io
import pickle
from pathlib import Path
from typing import Any

from charact.core.errors import UserError

_NAMES = {("_codecs", "encode"), ("numpy", "dtype"), ("numpy", "ndarray"), ("numpy.core.multiarray", "_reconstruct"),
          ("numpy.core.numeric", "_frombuffer")}


def read_pickle(content: bytes, path: Path) -> dict[str, Any]:
    """Return the dictionary of texts, numbers, lists and arrays in a pickle; `path` is for messages.

    Keys are texts. Texts of Python 2 are bytes of unknown encoding, decoded as Latin-1.
    """
    try:
        values = _Unpickler(io.BytesIO(content), encoding="latin-1").load()
        return {key if isinstance(key, str) else key.decode("latin-1"): value for key, value in values.items()}
    except UserError as error:
        raise UserError(f"{path} is rejected: its pickle {error}: fetch it again") from error
    except Exception as error:  # damaged pickles raise all kinds of errors
        raise UserError(f"{path} is a damaged pickle ({type(error).__name__}): fetch it again") from error


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle names; NumPy 2 has its core elsewhere."""
        if (module.replace("numpy._core", "numpy.core"), name) not in _NAMES:
            raise UserError(f"names '{' '.join(f'{module} {name}'[:60].split())}'")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)
