"""What `headrace quantize` is asked for."""

from typing import Literal

import msgspec

Method = Literal["awq", "gptq", "rtn", "fp8"]
ActOrder = Literal["none", "static", "dynamic"]  # see `backends.quantization.gptq`

GROUPS = (32, 64, 128)  # columns of a group that readers have kernels for


class SettingsError(ValueError):
    """Settings that do not go together; the message begins with the option."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`bits` of a weight; `group`: columns that share a scale, 0 for all of a row.

    `asymmetric`: groups have a zero of their own; always so with awq, never with fp8.
    `samples` sequences of `length` tokens are what the model is watched on; rtn and fp8 need none.
    """

    method: Method
    bits: int = 4
    group: int = 128
    asymmetric: bool = False
    act_order: ActOrder = "static"
    samples: int = 64
    length: int = 512

    @property
    def calibrated(self) -> bool:
        """Whether the method watches the model at work."""
        return self.method in ("awq", "gptq")


def settings(
    method: Method,
    bits: int | None = None,
    group: int | None = None,
    asymmetric: bool = False,
    act_order: ActOrder | None = None,
    samples: int | None = None,
    length: int | None = None,
) -> Settings:
    """With each method's defaults for what is None. Raises SettingsError for what a method does not know."""
    fp8 = method == "fp8"
    if fp8 and bits not in (None, 8):
        raise SettingsError(f"--bits: fp8 has 8, not {bits}")
    if fp8 and group not in (None, 0):
        raise SettingsError("--group: fp8 has a scale for each row, no groups")
    if bits not in (None, 4, 8):
        raise SettingsError(f"--bits: must be 4 or 8, not {bits}")
    if group not in (None, 0, *GROUPS):
        known = ", ".join(map(str, GROUPS))
        raise SettingsError(f"--group: must be {known}, or 0 for whole rows, not {group}")
    if asymmetric and method in ("awq", "fp8"):
        always = "awq is always so" if method == "awq" else "fp8 has no zeros"
        raise SettingsError(f"--asymmetric: is for rtn and gptq; {always}")
    if act_order is not None and method != "gptq":
        raise SettingsError("--act-order: is for gptq")
    if asymmetric and act_order == "dynamic":
        raise SettingsError("--act-order: dynamic is for groups without zeros, not for --asymmetric")
    if method in ("rtn", "fp8") and (samples is not None or length is not None):
        raise SettingsError(f"--samples, --length: {method} watches no model at work")
    return Settings(
        method=method,
        bits=bits or (8 if fp8 else 4),
        group=0 if fp8 else 128 if group is None else group,
        asymmetric=asymmetric or method == "awq",
        act_order=act_order or "static",
        samples=samples or 64,
        length=length or 512,
    )
