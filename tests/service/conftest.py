"""A server over a fake engine that knows 26 letters, and one over a real tiny bundle in a process of its own."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from edgeprec.runtime.passes import WeightBits
from edgeprec.runtime.service.app import WEB_FOLDER, build_app
from edgeprec.runtime.service.engine_room import EngineRoom
from edgeprec.runtime.service.notify import Notifier
from edgeprec.runtime.service.settings import ServiceSettings
from edgeprec.runtime.service.trace_log import TraceLog
from edgeprec.runtime.session import Session

TESTS = Path(__file__).resolve().parents[1]
MODEL = "toy"


def load_file(path: Path) -> ModuleType:
    """Import a file that is in no package, once."""
    full_name = f"edgeprec_tests_{path.parent.name}_{path.stem}"
    if full_name not in sys.modules:
        found = spec_from_file_location(full_name, path)
        assert found is not None
        assert found.loader is not None
        sys.modules[full_name] = module_from_spec(found)
        found.loader.exec_module(sys.modules[full_name])
    return sys.modules[full_name]


@pytest.fixture(scope="session")
def asgi() -> ModuleType:
    """Return the module that plays client and server to an application."""
    return load_file(TESTS / "service" / "asgi.py")


@dataclass
class Served:
    """An application and what it stands on. ``expected`` gives the toy's own greedy text."""

    app: ASGIApp
    room: EngineRoom
    engine: Any
    model: Any
    tokenizer: Any

    def expected(self, prompt: str, count: int) -> str:
        """Return the letters plain FP16 decoding writes behind ``prompt``; the end token shows as nothing."""
        ends = self.tokenizer.eos_token_ids
        return self.tokenizer.decode(self.model.decode(self.tokenizer.encode(prompt), count, ends=tuple(ends)))

    def expected_chat(self, content: str, count: int) -> str:
        """Return the same for a conversation of one turn."""
        return self.expected(self.tokenizer.render_chat([{"role": "user", "content": content}]), count)


@pytest.fixture(scope="session")
def make_served() -> Callable[..., Served]:
    """Return ``make(forced=..., engine=..., session=..., **settings)``."""
    fake = load_file(TESTS / "runtime" / "fake_engine.py")
    text = load_file(TESTS / "runtime" / "fake_text.py")

    def make(
        *,
        agreement: str = "sometimes",
        model: dict[str, Any] | None = None,
        engine: dict[str, Any] | None = None,
        session: dict[str, Any] | None = None,
        notifier: Notifier | None = None,
        trace: TraceLog | None = None,
        web_folder: Path = TESTS / "nowhere",
        **settings: Any,
    ) -> Served:
        toy = fake.ToyModel(**(model or {}))
        target = fake.FakeEngine(toy, agreement, **(engine or {}))
        tokenizer = text.letters(toy.vocab_size)
        made: dict[str, Any] = {
            "engine": target,
            "tokenizer": tokenizer,
            "target_bits": WeightBits(weights=(100,) * target.num_layers + (60,), int4_bits=4.5),
            "clock": target.clock,
        } | (session or {})
        room = EngineRoom(lambda: Session(**made), ServiceSettings(model_name=MODEL, **settings), trace=trace)
        app = build_app(room, notifier=notifier, web_folder=web_folder)
        return Served(app, room, target, toy, made["tokenizer"])

    return make


@pytest.fixture
def make_client(make_served: Callable[..., Served]) -> Iterator[Callable[..., Client]]:
    """Return ``make(**as make_served)``: a client of a server that is ready, closed after the test."""
    opened: list[Client] = []

    def make(**changes: Any) -> Client:
        served = make_served(**changes)
        client = Client(served)
        client.__enter__()
        opened.append(client)
        client.wait_until_ready()
        return client

    yield make
    for client in reversed(opened):
        client.__exit__(None, None, None)


class Client(TestClient):
    """Starlette's client with the server's inside beside it."""

    def __init__(self, served: Served) -> None:
        super().__init__(served.app, base_url="http://127.0.0.1", raise_server_exceptions=False)
        self.served = served

    def wait_until_ready(self) -> None:
        """Ask until the model is loaded."""
        for _ in range(2000):
            if self.get("/ready").status_code == 200:
                return
        raise AssertionError(f"not ready: {self.served.room.failure!r}")

    def chat(self, content: str = "abc", **fields: Any) -> Any:
        """Send a conversation of one turn."""
        return self.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": content}], **fields})

    def complete(self, prompt: Any = "abc", **fields: Any) -> Any:
        """Send a text."""
        return self.post("/v1/completions", json={"prompt": prompt, **fields})


class Hold:
    """Keeps an engine in its pass until ``release``; hand it over as ``before_pass``. Inactive until ``arm``."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._free = threading.Event()
        self._free.set()

    def arm(self) -> None:
        """Hold the next pass."""
        self.entered.clear()
        self._free.clear()

    def release(self) -> None:
        """Let passes run."""
        self._free.set()

    def __call__(self, _asked: Any) -> None:
        if not self._free.is_set():
            self.entered.set()
            assert self._free.wait(30), "nobody released the engine"


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Return a hold that ends with the test."""
    made = Hold()
    yield made
    made.release()


@pytest.fixture(scope="module")
def web(asgi: ModuleType) -> ModuleType:
    """Return the module that serves on a port."""
    return load_file(TESTS / "service" / "web_server.py")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return Debian's Chromium without a window. As root it only starts without its sandbox."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Debian's chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium, args=flags)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """Return a fresh page; an error or a breach of the content policy on it fails the test."""
    context = browser.new_context()
    opened = context.new_page()
    opened.set_default_timeout(30_000)
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("console", lambda said: faults.append(said.text) if "Content Security Policy" in said.text else None)
    yield opened
    context.close()
    assert faults == []


@pytest.fixture
def brake(web: ModuleType) -> Iterator[Any]:
    """Return the engine's brake, released after the test."""
    made = web.Brake()
    yield made
    made.release()


@pytest.fixture
def start(web: ModuleType, make_served: Callable[..., Any], brake: Any) -> Iterator[Callable[..., Any]]:
    """Return ``start(**as make_served)``: gives the server's inside and the page's address."""
    with ExitStack() as stack:

        def begin(**changes: Any) -> Any:
            engine = {"before_pass": brake} | changes.pop("engine", {})
            served = make_served(engine=engine, web_folder=WEB_FOLDER, **changes)
            address = stack.enter_context(web.served_on_port(served.app))
            stack.callback(brake.release)  # before the server ends
            return served, address

        yield begin
