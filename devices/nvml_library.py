"""NVML's Python binding behind one call, with its error codes named and explained.

Official binding: the package nvidia-ml-py, module ``pynvml``. Another package of the name pynvml may shadow it; it is
accepted as far as it goes.
"""

from __future__ import annotations

import importlib
from typing import Any, Self

from edgeprec.errors import DeviceError

__all__ = ["FUNCTION_NOT_FOUND", "GONE_CODES", "NOT_SUPPORTED", "NvmlError", "NvmlLibrary", "as_text", "explain_code"]

NOT_SUPPORTED = 3
FUNCTION_NOT_FOUND = 13
GONE_CODES = frozenset({1, 15, 16, 18, 999})  # a GPU that answers one of these will not answer again

_CODES: dict[int, tuple[str, str | None]] = {
    1: ("not initialised", "open the sensor in the process that reads it, after a fork"),
    2: ("invalid argument", None),
    NOT_SUPPORTED: ("not supported", None),
    4: ("no permission", "give the user access to /dev/nvidiactl and /dev/nvidia0, or look at the container's devices"),
    6: ("not found", None),
    9: ("driver not loaded", "load it with: sudo modprobe nvidia"),
    10: ("timeout", None),
    12: ("library not found", "install the NVIDIA driver, or start the container with --gpus all"),
    FUNCTION_NOT_FOUND: ("function not found", "the driver is older than nvidia-ml-py: upgrade the driver"),
    15: ("GPU is lost", "it fell off the bus: look at dmesg and reboot"),
    16: ("GPU needs a reset", "run: sudo nvidia-smi --gpu-reset, or reboot"),
    17: ("blocked by the operating system", "look at the container's device rules"),
    18: ("library and driver differ in version", "the driver was upgraded while it was loaded: reboot"),
    999: ("unknown error", "look at dmesg for Xid messages"),
}


def explain_code(code: int) -> str:
    """Return an NVML error code with its name and, where there is one, the fix: ``code 9 (driver not loaded): ...``."""
    name, fix = _CODES.get(code, ("unnamed", None))
    return f"code {code} ({name})" + ("" if fix is None else f": {fix}")


class NvmlError(DeviceError):
    """NVML refused a call. ``code`` is NVML's own."""

    def __init__(self, function: str, code: int, explanation: str | None = None) -> None:
        super().__init__(f"{function} answered {explanation or explain_code(code)}")
        self.function = function
        self.code = code


class NvmlLibrary:
    """The binding. ``ask`` calls one of its functions and turns its errors into NvmlError."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._is_open = False
        error_type = getattr(module, "NVMLError", None)
        if not (isinstance(error_type, type) and issubclass(error_type, Exception)):
            raise DeviceError(
                "the module pynvml has no NVMLError, so it is not NVIDIA's binding: "
                "run pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py"
            )
        self._error_type = error_type
        self.is_official = hasattr(module, "_nvmlGetFunctionPointer")

    @classmethod
    def open(cls, module: Any = None) -> Self:
        """Import the binding unless one is given, and initialise NVML.

        Raises:
            DeviceError: the binding is not installed or not NVIDIA's, or NVML cannot be initialised.
        """
        library = cls(_import_binding() if module is None else module)
        library.ask("nvmlInit")
        library._is_open = True
        return library

    def ask(self, function: str, *arguments: object) -> Any:
        """Call a function of the binding.

        Raises:
            NvmlError: NVML refused, or the binding has no such function.
        """
        call = getattr(self._module, function, None)
        if call is None:
            fix = None if self.is_official else "pynvml is not NVIDIA's package: run pip install nvidia-ml-py"
            text = f"code {FUNCTION_NOT_FOUND} (function not found): {fix}" if fix else None
            raise NvmlError(function, FUNCTION_NOT_FOUND, text)
        try:
            return call(*arguments)
        except self._error_type as error:
            code = getattr(error, "value", None)
            raise NvmlError(function, code if isinstance(code, int) else 999) from error

    def ask_text(self, function: str, *arguments: object) -> str:
        """Call a function that answers a text; old bindings answer bytes."""
        return as_text(self.ask(function, *arguments))

    def close(self) -> None:
        """Shut NVML down; calling it twice is harmless."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            self.ask("nvmlShutdown")
        except NvmlError:
            return  # a lost GPU must not turn the end of a run into an error


def as_text(value: object) -> str:
    """Return a name as text whether the binding gives text or bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _import_binding() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        raise DeviceError("NVML's Python binding is not installed: run pip install nvidia-ml-py") from error
