"""A stand-in for TensorRT whose plans are ONNX graphs run by ONNX Runtime, over memory of the host.

It binds by address and shape, has optimization profiles, and checks what a real runtime checks.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

__all__ = ["HostMemory", "fake_library"]

_TYPES = {"tensor(int64)": np.int64, "tensor(float)": np.float32, "tensor(bool)": np.bool_}


class HostMemory:
    """Device memory that is the host's; remembers what it gave."""

    def __init__(self, sm: str = "sm89", free_bytes: int = 1 << 40) -> None:
        self.sm = sm
        self.name = "cuda:0"
        self.stream = 77
        self.blocks: dict[int, npt.NDArray[np.uint8]] = {}
        self.is_closed = False
        self._free_bytes = free_bytes

    def allocate(self, size_bytes: int) -> int:
        block = np.zeros(size_bytes, np.uint8)
        self.blocks[block.ctypes.data] = block
        return block.ctypes.data

    def upload(self, address: int, values: npt.NDArray[Any]) -> None:
        assert values.nbytes <= self.blocks[address].nbytes
        ctypes.memmove(address, values.ctypes.data, values.nbytes)

    def download(self, values: npt.NDArray[Any], address: int) -> None:
        assert values.flags.c_contiguous
        ctypes.memmove(values.ctypes.data, address, values.nbytes)

    def free_bytes(self) -> int:
        return self._free_bytes

    def close(self) -> None:
        self.is_closed = True


class Engine:
    """A plan that was loaded."""

    def __init__(self, plan: bytes, library: SimpleNamespace) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(plan, options, providers=["CPUExecutionProvider"])
        self.runtime = library
        self.inputs = {item.name: item for item in self.session.get_inputs()}
        self.outputs = {item.name: item for item in self.session.get_outputs()}
        self.tensors = self.inputs | self.outputs
        self.num_io_tensors = len(self.tensors)
        self.num_optimization_profiles = library.profiles

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_mode(self, name: str) -> str:
        return "input" if name in self.inputs else "output"

    def get_tensor_dtype(self, name: str) -> str:
        return str(self.tensors[name].type)

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return tuple(size if isinstance(size, int) else -1 for size in self.tensors[name].shape)

    def create_execution_context(self) -> Context:
        return Context(self)


class Context:
    """What runs an engine, in one optimization profile."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.profile = -1
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        self.profile = profile
        return stream == 77

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        fixed = self.engine.get_tensor_shape(name)
        rows = shape[2] if name == "mask" else shape[1] if name != "columns" else None
        is_in_profile = rows is None or self.engine.runtime.profiles == 1 or (rows == 1) == (self.profile == 0)
        self.shapes[name] = shape
        return (
            is_in_profile and len(fixed) == len(shape) and all(a in (-1, b) for a, b in zip(fixed, shape, strict=True))
        )

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        library = self.engine.runtime
        library.launched.append(self.engine)
        if library.fails:
            return False
        feed = {name: self._view(name, self.shapes.get(name)).copy() for name in self.engine.inputs}
        names = list(self.engine.outputs)
        for name, value in zip(names, self.engine.session.run(names, feed), strict=True):
            if name.startswith("present_"):
                assert self.addresses[name] == self.addresses[name.replace("present_", "past_")]
            assert name != "hidden_out" or self.addresses[name] != self.addresses["hidden"]
            ctypes.memmove(self.addresses[name], np.ascontiguousarray(value).ctypes.data, value.nbytes)
        return True

    def _view(self, name: str, shape: tuple[int, ...] | None) -> npt.NDArray[Any]:
        dtype = np.dtype(_TYPES[self.engine.get_tensor_dtype(name)])
        shape = shape or self.engine.get_tensor_shape(name)
        count = int(np.prod(shape))
        raw = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(self.addresses[name])
        return np.frombuffer(raw, dtype).reshape(shape)


class Severity(IntEnum):
    """How grave a message is, the gravest first."""

    ERROR = 1
    INFO = 3
    VERBOSE = 4


class ILogger:
    """What takes the library's messages."""

    VERBOSE = Severity.VERBOSE


def fake_library(
    *, version: str = "1.7", profiles: int = 2, refuses: bool = False, cannot_start: bool = False
) -> SimpleNamespace:
    """Return what ``import tensorrt_rtx`` would give. ``launched`` lists the engines that ran."""
    library = SimpleNamespace(__version__=version, profiles=profiles, launched=[], fails=False)
    library.TensorIOMode = SimpleNamespace(INPUT="input", OUTPUT="output")
    library.nptype = _TYPES.__getitem__

    library.ComputeCapability = SimpleNamespace(__members__=dict.fromkeys(("NONE", "SM75", "SM86", "SM89", "SM120")))

    class Runtime:
        def __init__(self, logger: Any) -> None:
            self.logger = logger
            if cannot_start:
                logger.log(Severity.ERROR, "no such device\nat line 7")
                raise TypeError("factory function returned nullptr")

        def deserialize_cuda_engine(self, plan: memoryview) -> Engine | None:
            self.logger.log(Severity.VERBOSE, "reading")
            if refuses:
                self.logger.log(Severity.ERROR, "the plan is of another platform")
                self.logger.log(Severity.INFO, "done")
                return None
            return Engine(bytes(plan), library)

    library.ILogger, library.Runtime = ILogger, Runtime
    return library
