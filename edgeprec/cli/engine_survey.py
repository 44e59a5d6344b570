"""Which inference engines this machine can run, asked of the libraries themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

__all__ = ["EngineFinding", "survey_engines"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFinding:
    """``note`` says what it runs on, or what keeps it from running."""

    name: str
    is_usable: bool
    note: str


def survey_engines() -> tuple[EngineFinding, ...]:
    """Import each engine's library and look at what it offers."""
    return (_look("onnxruntime", _onnxruntime), _look("torch", _torch), _look("tensorrt", _tensorrt))


def _look(name: str, ask: Callable[[], tuple[bool, str]]) -> EngineFinding:
    try:
        is_usable, note = ask()
    except ImportError as error:
        return EngineFinding(name=name, is_usable=False, note=f"not importable: {error}")
    return EngineFinding(name=name, is_usable=is_usable, note=note)


def _onnxruntime() -> tuple[bool, str]:
    if find_spec("onnxruntime") is None:
        return False, "not installed: pip install 'edgeprec[cpu]' or 'edgeprec[cuda]'"
    library = import_module("onnxruntime")
    providers = ", ".join(name.removesuffix("ExecutionProvider") for name in library.get_available_providers())
    from edgeprec.cli.provider_survey import cuda_fallbacks

    fallbacks = cuda_fallbacks(library.get_available_providers())
    return True, f"{library.__version__}, providers {providers}" + (f"; {fallbacks}" if fallbacks else "")


def _torch() -> tuple[bool, str]:
    if find_spec("torch") is None:
        return False, "not installed: pip install 'edgeprec[torch]'"
    library = import_module("torch")
    if not library.cuda.is_available():
        return True, f"{library.__version__}, no CUDA device: --engine torch computes on the CPU, slowly"
    from edgeprec.kernels.dispatch import kernel_backend

    name = library.cuda.get_device_name(0)
    reason = kernel_backend(library.device("cuda", 0)).reason
    return not reason, f"{library.__version__}, {name}{': ' + reason if reason else ', Triton kernels'}"


def _tensorrt() -> tuple[bool, str]:
    from edgeprec.cuda_library import gpu_sm
    from edgeprec.errors import DeviceError, EngineError, MissingDependency
    from edgeprec.tensorrt_library import find_tensorrt

    try:
        library = find_tensorrt(purpose="the tensorrt engine")
    except MissingDependency:
        return False, "not installed: pip install 'edgeprec[tensorrt]', or the TensorRT of JetPack"
    except EngineError as error:
        return False, str(error)
    try:
        sm = gpu_sm()
    except (DeviceError, MissingDependency) as error:
        return False, f"{library.name} builds engines here; cannot run them: {error}"
    if not library.runs_on(sm):
        return False, f"{library.name} builds engines here; this GPU is {sm}, they run on {', '.join(library.sms)} only"
    return True, f"{library.name}, GPU of {sm}"
