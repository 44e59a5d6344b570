"""The same prompts on another server: a client of the OpenAI completions API, timed chunk by chunk.

It streams, asks for ``usage``, and takes its counts from there: a chunk may hold several tokens. Prefill is the time
to the first chunk, decoding the time from there to the last one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult

from edgeprec.config import GenerationConfig
from edgeprec.errors import ConfigError, EdgePrecError
from edgeprec.runtime.benchmark_case import Job
from edgeprec.runtime.benchmark_connection import connected
from edgeprec.runtime.benchmark_repeat import Generated
from edgeprec.runtime.benchmark_stream import Stream, excerpt, printable
from edgeprec.runtime.benchmark_url import server_url

__all__ = ["Peer", "open_peer"]

_LLAMA_CPP = "llamacpp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """An OpenAI-compatible server. ``timeout_s`` is how long it may take for its next token."""

    url: SplitResult
    model: str
    engine: str  # what the server calls itself
    is_local: bool  # whether it runs on this machine, whose power is measured
    key: str | None = field(default=None, repr=False)
    timeout_s: float = 60.0
    clock: Callable[[], int] = time.monotonic_ns

    def to_json(self) -> dict[str, Any]:
        """Return what a record says of the server."""
        return {"url": self.url.geturl(), "model": self.model, "engine": self.engine, "is_local": self.is_local}

    @property
    def energy_note(self) -> str | None:
        """Return why its joules cannot be measured here, None where they may be."""
        if self.is_local:
            return None
        return f"the server {self.url.geturl()} runs on another machine, whose power is not measured here"

    def check(self, config: GenerationConfig) -> None:
        """Check that the server can be asked for these settings.

        Raises:
            ConfigError: it would leave one of them out without a word.
        """
        if self.engine == _LLAMA_CPP and config.sampling.repetition_penalty != 1.0:
            raise ConfigError(
                "--repetition-penalty has no counterpart in llama.cpp's server, which looks back at 64 tokens alone: "
                "leave it out to compare with --against"
            )

    def complete(
        self, job: Job, config: GenerationConfig, *, mark: Callable[[str], object] = lambda _phase: None
    ) -> Generated:
        """Run one completion to its end; ``mark`` is told when prefill and decode begin.

        Raises:
            EngineError: the server cannot be reached.
            EdgePrecError: it refuses, takes too long for a token, breaks off or sends what is no stream of completions.
        """
        body = json.dumps(_request(self.model, job, config)).encode()
        stream = Stream(
            self.url.geturl(), self.clock, on_first=lambda: mark("decode"), max_new_tokens=job.max_new_tokens
        )
        with connected(self.url, key=self.key, timeout_s=self.timeout_s) as connection:
            mark("prefill")
            began_ns = self.clock()
            with connection.asking("POST", "/completions", body) as response:
                for line in connection.lines(response):
                    chunks = stream.chunks
                    if stream.push(line):
                        break
                    if stream.chunks > chunks:
                        connection.progressed()
        usage = stream.finish()
        return Generated(
            id=job.id,
            kind=job.kind,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            new_tokens=usage.new_tokens,
            prefill_s=(stream.first_ns - began_ns) * 1e-9,
            decode_s=(stream.last_ns - stream.first_ns) * 1e-9,
            finish_reason=stream.finish_reason or "unknown",
            text=stream.text,
        )


def open_peer(url: str, *, model: str | None = None, key: str | None = None, timeout_s: float = 60.0) -> Peer:
    """Ask a server which models it has and return a client of it; ``url`` may end in ``/v1`` or not.

    Raises:
        ConfigError: the URL is none, or the server has no such model.
        EngineError: the server cannot be reached.
        EdgePrecError: it does not answer as an OpenAI-compatible server does.
    """
    base = server_url(url)
    with connected(base, key=key, timeout_s=timeout_s) as connection:
        is_local = connection.is_local
        with connection.asking("GET", "/models") as response:
            text = connection.read(response)
    models = _models(text, base.geturl())
    chosen = next(iter(models)) if model is None else model
    if chosen not in models:
        raise ConfigError(f"{base.geturl()} has no model {model!r}, only {printable(', '.join(models))}")
    return Peer(url=base, model=chosen, engine=models[chosen], is_local=is_local, key=key, timeout_s=timeout_s)


def _request(model: str, job: Job, config: GenerationConfig) -> dict[str, Any]:
    """Return the body; what OpenAI's own API does not know is called as in vLLM and SGLang."""
    sampling = config.sampling
    body: dict[str, Any] = {
        "model": model,
        "prompt": job.text,
        "max_tokens": job.max_new_tokens,
        "temperature": sampling.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    optional = {
        "top_p": sampling.top_p if sampling.top_p < 1.0 else None,
        "top_k": sampling.top_k or None,
        "min_p": sampling.min_p or None,
        "repetition_penalty": sampling.repetition_penalty if sampling.repetition_penalty != 1.0 else None,
        "seed": sampling.seed,
        "stop": list(config.stop) or None,
        "ignore_eos": config.ignore_eos or None,
    }
    return body | {name: value for name, value in optional.items() if value is not None}


def _models(text: bytes, url: str) -> dict[str, str]:
    """Return the ids of a list of models, each with who owns it."""
    try:
        entries = json.loads(text)["data"]
        models = {str(entry["id"]): printable(str(entry.get("owned_by") or "server")) for entry in entries}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EdgePrecError(
            f"{url}/models is no list of models, it says {excerpt(text)}: is it the right URL?"
        ) from error
    if not models:
        raise EdgePrecError(f"{url}/models lists no model: load one there first")
    return models
