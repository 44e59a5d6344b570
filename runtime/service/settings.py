"""How the server runs: where it listens, who may use it, and the limits that keep it up."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from edgeprec.config import GenerationConfig
from edgeprec.errors import ConfigError

__all__ = ["ServiceSettings", "is_loopback"]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """What ``edgeprec serve`` is told. ``max_tokens`` None = what the context holds.

    A generation may run ``request_seconds`` once it has begun; a body must arrive within ``body_seconds``, a reader
    may stand still for ``stall_seconds``. ``generation`` is what a request that says nothing gets.
    """

    model_name: str
    host: str = "127.0.0.1"
    port: int = 8080
    api_key_file: Path | None = None
    insecure: bool = False
    cors_origins: tuple[str, ...] = ()
    queue: int = 64
    max_tokens: int | None = None
    max_body_bytes: int = 2**20
    body_seconds: float = 30.0
    stall_seconds: float = 60.0
    request_seconds: float = 600.0
    drain_seconds: float = 30.0
    trace: Path | None = None
    generation: GenerationConfig = field(default_factory=GenerationConfig)

    def __post_init__(self) -> None:
        _check(0 <= self.port <= 65535, "port", self.port, "0 (any free one) to 65535")
        _check(self.queue >= 0, "queue", self.queue, "0 or more waiting requests")
        _check(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", self.max_tokens, "1 or more")
        _check(self.max_body_bytes >= 1024, "max_body_bytes", self.max_body_bytes, "1024 or more")
        for name in ("body_seconds", "stall_seconds", "request_seconds"):
            _check(getattr(self, name) > 0, name, getattr(self, name), "more than 0 seconds")
        _check(self.drain_seconds >= 0, "drain_seconds", self.drain_seconds, "0 or more seconds")
        for origin in self.cors_origins:
            is_origin = origin == "*" or (origin.startswith(("http://", "https://")) and origin.count("/") == 2)
            _check(is_origin, "cors_origin", origin, "such as https://app.example, or *")
        if not is_loopback(self.host) and self.api_key_file is None and not self.insecure:
            raise ConfigError(
                f"host is {self.host!r}, which other machines can reach, and there is no API key: give --api-key-file, "
                "listen on 127.0.0.1, or say --insecure"
            )


def _check(ok: bool, name: str, value: object, expected: str) -> None:
    if not ok:
        raise ConfigError(f"service: {name} is {value!r}, expected {expected}")
