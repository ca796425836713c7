"""Powers of two that move from what makes some numbers to the matrices that read them.

A norm gives n * g, and a matrix W multiplies it: W (n * g) = (W * s) (n * g / s), with a factor s for each number. The
factors are powers of two, so every product has the same bits as before. Numbers of about the same size lose less to a
scale that they share (Xiao et al. 2022, "SmoothQuant", arXiv:2211.10438).
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

from txport.errors import quoted


@dataclass(frozen=True)
class Smoothing:
    """The factors of the numbers between some tensors of a checkpoint.

    The first dim of the tensors `made_by`, such as the weight and the bias of a norm, is divided by the factors, and
    the last dim of the matrices `read_by` is multiplied. `exponents` is the exponent of each factor, as int8.
    """

    made_by: tuple[str, ...]
    read_by: tuple[str, ...]
    exponents: bytes

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        names = {"made_by": list(self.made_by), "read_by": list(self.read_by)}
        return {**names, "exponents": base64.b64encode(self.exponents).decode("ascii")}

    @classmethod
    def from_dict(cls, values: Any) -> Smoothing:
        """Create an instance from JSON values; raise `TypeError` or `ValueError` for invalid ones."""
        if not isinstance(values, dict) or values.keys() != {"made_by", "read_by", "exponents"}:
            raise TypeError(f"a smoothing must have made_by, read_by and exponents, got {quoted(values)}")
        names = [values[key] for key in ("made_by", "read_by")]
        if not all(isinstance(some, list) and all(isinstance(each, str) for each in some) for some in names):
            raise TypeError(f"made_by and read_by of a smoothing must be lists of names, got {quoted(names)}")
        try:
            exponents = base64.b64decode(values["exponents"], validate=True)
        except (TypeError, binascii.Error) as error:
            raise ValueError("the exponents of a smoothing must be in base64") from error
        return cls(tuple(names[0]), tuple(names[1]), exponents)
