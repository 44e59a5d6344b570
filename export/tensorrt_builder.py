"""One ONNX graph in, one serialized TensorRT engine out: strongly typed, with a profile for each range of rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from edgeprec.errors import EngineError, MemoryBudgetError
from edgeprec.tensorrt_library import TensorRtLibrary
from edgeprec.tensorrt_log import last_error, logger_into

__all__ = ["MAX_ROWS", "PlanBuilder", "Range"]

MAX_ROWS = 16
_OUT_OF_MEMORY = ("out of memory", "outofmemory", "bad_alloc", "std::bad_alloc", "error code 2: outofmemory")
Range = tuple[int, int, int]  # shortest, expected, longest


@dataclass(slots=True)
class PlanBuilder:
    """Builds plans with one library. ``log`` keeps what it said, for whoever must find out why a build failed.

    An interrupt cancels the build within moments: it runs in a thread of its own, which asks after each step.
    """

    tensorrt: TensorRtLibrary
    sms: Sequence[str]
    context_tokens: int
    profiles: Sequence[Range]  # shortest, expected and most rows of each optimization profile
    on_phase: Callable[[str], None]
    log: list[str] = field(default_factory=list)

    def build(self, graph: Path, *, name: str) -> memoryview:
        """Build the graph at ``graph``, whose inputs have the dynamic dimensions T and W or none.

        Raises:
            EngineError: the library cannot read the graph or build it; the message has its reason.
            MemoryBudgetError: it ran out of memory.
        """
        self.log.append(f"segment {name}")
        cancel, plan = threading.Event(), _Result()
        thread = threading.Thread(target=self._work, args=(graph, name, cancel, plan), name="edgeprec-tensorrt")
        thread.start()
        try:
            while thread.is_alive():
                thread.join(0.1)
        finally:
            cancel.set()
            thread.join()
        if plan.error is not None:
            raise plan.error
        assert plan.data is not None
        return plan.data

    def _work(self, graph: Path, name: str, cancel: threading.Event, result: _Result) -> None:
        try:
            result.data = self._serialize(graph, name, cancel)
        except (EngineError, MemoryBudgetError) as error:
            result.error = error
        except MemoryError:
            result.error = MemoryBudgetError(f"building {name} ran out of memory")

    def _serialize(self, graph: Path, name: str, cancel: threading.Event) -> memoryview:
        trt, library = self.tensorrt.module, self.tensorrt.name
        logger = logger_into(trt, self.log)
        try:
            builder = trt.Builder(logger)
        except TypeError as error:  # what the bindings make of the null that the library returns
            raise EngineError(f"{library} cannot start its builder: {last_error(self.log)}") from error
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = trt.OnnxParser(network, logger)
        if not parser.parse_from_file(str(graph)):
            errors = [parser.get_error(index) for index in range(parser.num_errors)]
            self.log.extend(map(str, errors))
            operators = sorted({error.node_operator() for error in errors} - {""})
            reason = f"it does not take {', '.join(operators)}" if operators else last_error(self.log)
            raise EngineError(
                f"{library} cannot read the graph of {name}, which uses operators of ONNX opset 24: {reason}; install "
                "a newer TensorRT"
            )
        config = self._configure(builder, graph)
        config.progress_monitor = _monitor(trt, self.on_phase, cancel)
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            raise self._failure(name, library)
        return memoryview(plan)

    def _configure(self, builder: Any, graph: Path) -> Any:
        config = builder.create_builder_config()
        if self.tensorrt.is_ahead_of_time:
            capabilities = self.tensorrt.module.ComputeCapability
            config.num_compute_capabilities = len(self.sms)
            for index, sm in enumerate(self.sms):
                config.set_compute_capability(getattr(capabilities, sm.upper()), index)
        inputs = onnx.load(str(graph), load_external_data=False).graph.input
        for rows in self.profiles:
            profile = builder.create_optimization_profile()
            ranges = {"T": rows, "W": (1, self.context_tokens, self.context_tokens)}
            for value in inputs:
                shapes = _shapes(value, ranges)
                if shapes is not None:
                    profile.set_shape(value.name, *shapes)
            config.add_optimization_profile(profile)
        return config

    def _failure(self, name: str, library: str) -> EngineError | MemoryBudgetError:
        reason = last_error(self.log)
        if any(word in line.lower() for line in self.log[-20:] for word in _OUT_OF_MEMORY):
            return MemoryBudgetError(f"{library} ran out of memory while it built {name}: {reason}")
        return EngineError(f"{library} cannot build {name}: {reason}")


@dataclass(slots=True)
class _Result:
    data: memoryview | None = None
    error: EngineError | MemoryBudgetError | None = None


def _shapes(value: onnx.ValueInfoProto, ranges: Mapping[str, Range]) -> list[list[int]] | None:
    """Return the shortest, expected and longest shape of an input; None where it is fixed."""
    dims = value.type.tensor_type.shape.dim
    if not any(dim.dim_param for dim in dims):
        return None
    return [[ranges[dim.dim_param][which] if dim.dim_param else dim.dim_value for dim in dims] for which in range(3)]


def _monitor(trt: Any, on_phase: Callable[[str], None], cancel: threading.Event) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            if parent_phase is None:
                on_phase(phase_name)

        def phase_finish(self, phase_name: str) -> None:
            pass

        def step_complete(self, phase_name: str, step: int) -> bool:
            return not cancel.is_set()

    return Monitor()
