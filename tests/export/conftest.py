"""Fixtures shared by the export tests. The factories lie beside the tests and are loaded by path."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FACTORIES = Path(__file__).parents[1] / "factories"


def load_factory(name: str) -> ModuleType:
    """Import ``tests/factories/<name>.py`` once."""
    full_name = f"edgeprec_factories_{name}"
    if full_name not in sys.modules:
        found = spec_from_file_location(full_name, FACTORIES / f"{name}.py")
        assert found is not None
        assert found.loader is not None
        sys.modules[full_name] = module_from_spec(found)
        found.loader.exec_module(sys.modules[full_name])
    return sys.modules[full_name]


@pytest.fixture(scope="session")
def checkpoints() -> ModuleType:
    """Return the factory of tiny Hugging Face checkpoints: ``checkpoints.make_checkpoint(path, "llama", ...)``."""
    return load_factory("checkpoints")


@pytest.fixture(scope="session")
def tiny_tokenizer() -> ModuleType:
    """Return the factory of the tokenizer those checkpoints carry."""
    return load_factory("tiny_tokenizer")


@pytest.fixture(scope="session")
def gguf_files() -> ModuleType:
    """Return the factory of tiny GGUF files."""
    return load_factory("gguf_files")


@pytest.fixture(scope="session")
def bundles() -> ModuleType:
    """Return the factory of tiny bundles."""
    return load_factory("bundles")


@pytest.fixture
def weights_of(checkpoints: ModuleType) -> Callable[[Any], dict[str, Any]]:
    """Return a function that gives all tensors of a CheckpointSpec by Hugging Face name, in float32."""

    def draw(spec: Any) -> dict[str, Any]:
        shapes = checkpoints.tensor_shapes(spec)
        return {name: checkpoints.tensor_values(spec, name, shape) for name, shape in shapes.items()}

    return draw


@pytest.fixture
def make_gguf(
    gguf_files: ModuleType, tiny_tokenizer: ModuleType, weights_of: Callable[[Any], dict[str, Any]]
) -> Callable[..., Path]:
    """Return ``make(path, spec, pre="smollm", **options)``: a GGUF file of a spec with the tiny tokenizer."""

    def make(path: Path, spec: Any, *, pre: str = "smollm", **options: Any) -> Path:
        tokens = list(tiny_tokenizer.build_tokenizer(spec.vocab_size).get_vocab(with_added_tokens=True).items())
        tokens.sort(key=lambda item: item[1])
        bpe = gguf_files.bpe_metadata([token for token, _ in tokens], tiny_tokenizer.MERGES, pre=pre, specials=3)
        options.setdefault("tokenizer", bpe)
        weights = options.pop("weights", None) or weights_of(spec)
        return Path(gguf_files.make_gguf(path, spec, weights, **options))

    return make
