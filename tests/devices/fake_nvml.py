"""NVIDIA's Python binding as a script: every call of a GPU answers a value, a function's value, or an error code."""

from __future__ import annotations

from types import SimpleNamespace

NOT_SUPPORTED = 3

# what a GPU answers unless told otherwise; an Err is an NVML error
DEFAULTS: dict[str, object] = {
    "nvmlDeviceGetName": "NVIDIA H200",
    "nvmlDeviceGetUUID": "GPU-0000",
    "nvmlDeviceGetPciInfo": SimpleNamespace(busId="00000000:17:00.0"),
    "nvmlDeviceGetArchitecture": 9,
}


class Err:
    """An NVML error code as an answer."""

    def __init__(self, code: int) -> None:
        self.code = code


class FakeGpu:
    """The answers of one GPU by function; ``field186`` is the instantaneous power. Unnamed calls: not supported."""

    def __init__(self, **answers: object) -> None:
        self.answers = {**DEFAULTS, **answers}
        self.calls: list[str] = []

    def answer(self, function: str) -> object:
        """Return the scripted answer."""
        self.calls.append(function)
        answer = self.answers.get(function, Err(NOT_SUPPORTED))
        return answer() if callable(answer) else answer


class FakeNvml:
    """Stands in for the module pynvml."""

    class NVMLError(Exception):
        """NVML's error with its code."""

        def __init__(self, value: int) -> None:
            super().__init__(value)
            self.value = value

    def __init__(self, *gpus: FakeGpu, init: object = None, is_official: bool = True, **overrides: object) -> None:
        self.gpus = list(gpus)
        self.init = init
        self.overrides = overrides
        self.open_count = 0
        if is_official:
            self._nvmlGetFunctionPointer = lambda name: name

    def _check(self, answer: object) -> object:
        if isinstance(answer, Err):
            raise self.NVMLError(answer.code)
        return answer

    def nvmlInit(self) -> None:
        """Initialise, or fail as told."""
        self._check(self.init)
        self.open_count += 1

    def nvmlShutdown(self) -> None:
        """Count back."""
        self.open_count -= 1

    def nvmlDeviceGetCount(self) -> int:
        """Return the number of GPUs."""
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        """Return the GPU itself as its handle."""
        self._check(self.gpus[index].answers.get("handle"))
        return self.gpus[index]

    def nvmlSystemGetDriverVersion(self) -> object:
        """Return the driver's version."""
        return self._check(self.overrides.get("driver", "580.95.05"))

    def nvmlDeviceGetFieldValues(self, gpu: FakeGpu, fields: list[int]) -> list[SimpleNamespace]:
        """Answer field 186; its error stands in the field, the call itself succeeds."""
        assert fields == [186]
        answer = gpu.answer("field186")
        if isinstance(answer, Err):
            return [SimpleNamespace(nvmlReturn=answer.code, value=SimpleNamespace(uiVal=0))]
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=answer))]

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: int) -> FakeGpu:
        """Return a MIG instance, whose only answer is its UUID."""
        instances = gpu.answers.get("mig_uuids", ())
        if index >= len(instances):
            raise self.NVMLError(6)
        return FakeGpu(nvmlDeviceGetUUID=instances[index])

    def __getattr__(self, name: str) -> object:
        if not name.startswith("nvmlDevice") or name in self.overrides.get("missing", ()):
            raise AttributeError(name)
        return lambda gpu, *_: self._check(gpu.answer(name))


def jetson_gpu(name: object = "Orin (nvgpu)") -> FakeGpu:
    """Return a Jetson's integrated GPU: it has a name, and nothing else is supported."""
    return FakeGpu(
        nvmlDeviceGetName=name,
        nvmlDeviceGetUUID=Err(NOT_SUPPORTED),
        nvmlDeviceGetPciInfo=Err(NOT_SUPPORTED),
        nvmlDeviceGetArchitecture=Err(NOT_SUPPORTED),
    )
