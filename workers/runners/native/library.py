"""The compiled kernels, as Python sees them: structures and signatures, one for one those of the C sources.

Knows memory layouts and pointers. Does not know models, sequences or who owns the memory: whoever makes a structure
keeps alive what it points to. Calls let go of the GIL.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from workers.runners.native.build import NoLibrary, build_library

__all__ = [
    "STAGES",
    "BufferPointers",
    "DecoderPointers",
    "LayerKV",
    "LayerPointers",
    "LinearPointers",
    "NativeLibrary",
    "Spans",
    "StepPointers",
    "load_library",
    "pointer",
]

_I64, _I32, _F32, _POINTER = ctypes.c_int64, ctypes.c_int32, ctypes.c_float, ctypes.c_void_p

STAGES = ("products", "attention", "rest", "head")
"""What a forward's time is divided into, in the order of C's `enum Stage`."""


class LinearPointers(ctypes.Structure):
    """gemm.h, Linear."""

    _fields_ = [("outputs", _I64), ("inputs", _I64), ("panels", _POINTER), ("bias", _POINTER)]


class Spans(ctypes.Structure):
    """attention.h, Spans."""

    _fields_ = [
        ("spans", _I64),
        ("tokens", _I64),
        ("items", _I64),
        ("first", _POINTER),
        ("start", _POINTER),
        ("length", _POINTER),
        ("table_first", _POINTER),
        ("table", _POINTER),
        ("item_span", _POINTER),
        ("item_token", _POINTER),
    ]


class LayerKV(ctypes.Structure):
    """attention.h, LayerKV."""

    _fields_ = [
        ("keys", _POINTER),
        ("values", _POINTER),
        ("block_stride", _I64),
        ("bf16", _I32),
        ("heads", _I32),
        ("kv_heads", _I32),
        ("head_dim", _I32),
        ("item_tokens", _I32),
        ("window", _I32),
        ("scaling", _F32),
    ]


class LayerPointers(ctypes.Structure):
    """decoder.c, Layer."""

    _fields_ = [
        ("attention_norm", _POINTER),
        ("mlp_norm", _POINTER),
        ("query_norm", _POINTER),
        ("key_norm", _POINTER),
        ("qkv", LinearPointers),
        ("output", LinearPointers),
        ("gate_up", LinearPointers),
        ("down", LinearPointers),
        ("window", _I64),
        ("rotary", _I64),
    ]


class DecoderPointers(ctypes.Structure):
    """decoder.c, Decoder."""

    _fields_ = [
        ("layers", _I64),
        ("hidden", _I64),
        ("intermediate", _I64),
        ("heads", _I64),
        ("kv_heads", _I64),
        ("head_dim", _I64),
        ("vocabulary", _I64),
        ("bf16", _I64),
        ("gelu", _I64),
        ("norm_epsilon", _F32),
        ("scaling", _F32),
        ("layer", ctypes.POINTER(LayerPointers)),
        ("final_norm", _POINTER),
        ("head", LinearPointers),
    ]


class BufferPointers(ctypes.Structure):
    """decoder.c, Buffers."""

    _fields_ = [(name, _POINTER) for name in ("hidden", "normed", "qkv", "attended", "activated")]


class StepPointers(ctypes.Structure):
    """decoder.c, Step."""

    _fields_ = [
        ("spans", Spans),
        ("cosine", _POINTER),
        ("sine", _POINTER),
        ("blocks", _POINTER),
        ("block_stride", _I64),
        ("item_tokens", _I64),
        ("wanted", _POINTER),
        ("samples", _I64),
        ("embeddings", _I64),
        ("logits", _POINTER),
        ("seconds", _POINTER),
    ]


class NativeLibrary:
    """The functions that Python calls."""

    def __init__(self, file: Path) -> None:
        """Raises `OSError` if the file can't be loaded."""
        library = ctypes.CDLL(str(file))
        self.file = file
        self.store_step_kv = _signed(
            library.store_step_kv, ctypes.POINTER(Spans), ctypes.POINTER(LayerKV), _POINTER, _POINTER, ctypes.c_int
        )
        self.attend_step = _signed(
            library.attend_step,
            ctypes.POINTER(Spans),
            ctypes.POINTER(LayerKV),
            _POINTER,
            _I64,
            _POINTER,
            _I64,
            ctypes.c_int,
        )
        self.decoder_forward = _signed(
            library.decoder_forward,
            ctypes.POINTER(DecoderPointers),
            ctypes.POINTER(BufferPointers),
            ctypes.POINTER(StepPointers),
            ctypes.c_int,
        )
        self._pack_panels = _signed(
            library.pack_panels, _POINTER, ctypes.c_int, _I64, _I64, _POINTER, _I64, _I64, ctypes.c_int
        )
        self._read_floats = _signed(library.read_floats, _POINTER, _I64, ctypes.c_int)
        self._read_floats.restype = ctypes.c_double
        library.panel_width.restype = _I64
        self.panel_width: int = library.panel_width()
        """Output columns that are stored together."""

    def pack(self, *weights: torch.Tensor, threads: int) -> torch.Tensor:
        """[outputs, inputs] → [⌈outputs ÷ panel_width⌉, inputs, panel_width], a copy of the same format.

        Several weights of one shape: their panels in turn, one of each.
        """
        outputs, inputs = weights[0].shape
        dtype = weights[0].dtype
        assert dtype in (torch.float32, torch.bfloat16), dtype
        panels = -(-outputs // self.panel_width)
        # numpy asks the system for large pages, torch doesn't: fewer misses where weights are streamed.
        raw = np.empty((panels * len(weights), inputs, self.panel_width * dtype.itemsize), dtype=np.uint8)
        packed = torch.from_numpy(raw).view(dtype)
        for number, weight in enumerate(weights):
            assert weight.is_contiguous()
            assert (weight.shape, weight.dtype) == (weights[0].shape, dtype)
            to = pointer(packed)
            bf16 = dtype == torch.bfloat16
            self._pack_panels(pointer(weight), bf16, outputs, inputs, to, number, len(weights), threads)
        return packed

    def read_seconds(self, values: np.ndarray[Any, np.dtype[np.float32]], threads: int) -> float:
        """What it takes to read the values once."""
        return float(self._read_floats(pointer(values), values.size, threads))


def load_library(on_progress: Callable[[str], None] = lambda _line: None) -> NativeLibrary | NoLibrary:
    """Compile the kernels unless that was done before, and load them. Import torch first: it brings OpenMP."""
    built = build_library(on_progress)
    if isinstance(built, NoLibrary):
        return built
    try:
        return NativeLibrary(built)
    except OSError as error:
        return NoLibrary(f"{built} can't be loaded ({error})")


def pointer(array: torch.Tensor | np.ndarray[Any, Any] | None) -> int | None:
    """Its first element's address. The caller keeps it alive."""
    if array is None:
        return None
    return array.data_ptr() if isinstance(array, torch.Tensor) else array.ctypes.data


def _signed(function: Any, *arguments: Any) -> Any:
    function.argtypes = arguments
    function.restype = None
    return function
