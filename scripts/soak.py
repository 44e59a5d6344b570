"""Load a server for a while and check that it stays what it was: scripts/soak.py BUNDLE --clients 64 --minutes 10

It starts ``edgeprec serve`` on the bundle, asks every case once as the only client, and then lets many clients ask the
same cases in random order, whole and streamed; some hang up in the middle. It fails when an answer is an error other
than 429, when a reply differs from the single client's, when the server's memory grows by 5 % or more, or when SIGTERM
does not end it with 0. Only the standard library is used.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

MAX_GROWTH = 0.05
SAMPLE_SECONDS = 1.0
TEXTS = (
    "The capital of France is",
    "Once upon a time there was",
    "def fibonacci(n):",
    "Three reasons to walk to work:",
    "Water boils when",
    "Dear Sir or Madam,",
    "The tide comes in twice a day because",
    "1, 2, 3, 4,",
)


@dataclass(frozen=True)
class Case:
    """One request that is asked again and again."""

    path: str
    body: dict[str, Any]


@dataclass
class Tally:
    """What the clients met; ``faults`` are sentences."""

    statuses: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    tokens: int = 0
    hung_up: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def make_cases(tokens: int) -> list[Case]:
    """Return conversations and completions, greedy and with a seed."""
    cases = []
    for number, text in enumerate(TEXTS):
        sampling = {"temperature": 0.9, "top_p": 0.95, "seed": number} if number % 2 else {"temperature": 0}
        asked = {"max_tokens": tokens, **sampling}
        cases.append(Case("/v1/completions", {"prompt": text, **asked}))
        cases.append(Case("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **asked}))
    return cases


class Server:
    """``edgeprec serve`` in a process of its own."""

    def __init__(self, bundle: str, queue: int, flags: list[str]) -> None:
        command = [sys.executable, "-m", "edgeprec", "serve", bundle, "--port", "0", "--queue", str(queue), *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            found = re.search(r"answering at http://([\d.]+):(\d+)", line)
            if found:
                self.host, self.port = found.group(1), int(found.group(2))
                self._words = threading.Thread(target=self._show, daemon=True)
                self._words.start()
                return
            print(line, end="", file=sys.stderr)
        sys.exit(f"error: the server ended with {self.process.wait()}")

    def connect(self) -> http.client.HTTPConnection:
        """Return a new connection."""
        return http.client.HTTPConnection(self.host, self.port, timeout=600)

    def resident_bytes(self) -> float:
        """Return the memory the server's own metrics show."""
        connection = self.connect()
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        found = re.search(r"^process_resident_memory_bytes (\S+)", text, re.MULTILINE)
        assert found is not None
        return float(found.group(1))

    def end(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)

    def close(self) -> None:
        """Make sure that the process is gone."""
        self.process.kill()
        self.process.wait()
        self._words.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _show(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            print(line, end="", file=sys.stderr)


def ask(server: Server, case: Case, *, is_stream: bool, hang_up: bool = False) -> tuple[int, dict[str, Any]]:
    """Return the status, and text and facts of the reply, of a stream put together; nothing where it was hung up."""
    connection = server.connect()
    try:
        body = json.dumps({**case.body, "stream": is_stream})
        connection.request("POST", case.path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            answer.read()
            return answer.status, {"retry_after": int(answer.headers.get("retry-after", 1))}
        if not is_stream:
            return 200, whole(json.loads(answer.read()))
        if hang_up:
            answer.readline()
            return 200, {}
        return 200, joined(answer.read().decode())
    finally:
        connection.close()


def whole(reply: dict[str, Any]) -> dict[str, Any]:
    """Return what a reply in one piece says."""
    choice = reply["choices"][0]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    return said(text, choice["finish_reason"], reply["edgeprec"])


def joined(body: str) -> dict[str, Any]:
    """Return what a stream says in the end."""
    events = [block.removeprefix("data: ") for block in body.split("\n\n") if block]
    if events.pop() != "[DONE]":
        return {"fault": "a stream has no [DONE]"}
    parts = [json.loads(event) for event in events]
    pieces = [part["choices"][0] for part in parts]
    text = "".join(piece["delta"].get("content", "") if "delta" in piece else piece["text"] for piece in pieces)
    return said(text, pieces[-1]["finish_reason"], parts[-1]["edgeprec"])


def said(text: str, finish_reason: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Return what must be the same for every client."""
    return {
        "text": text,
        "finish_reason": finish_reason,
        "token_sha256": facts["token_sha256"],
        "tokens": facts["new_tokens"],
    }


def client(server: Server, cases: dict[int, tuple[Case, Any]], seed: int, end_s: float, tally: Tally) -> None:
    """Ask until the time is over."""
    draw = random.Random(seed)
    while time.monotonic() < end_s:
        case, expected = cases[draw.randrange(len(cases))]
        is_stream = draw.random() < 0.5
        hang_up = is_stream and draw.random() < 0.1
        began_s = time.monotonic()
        try:
            status, reply = ask(server, case, is_stream=is_stream, hang_up=hang_up)
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            with tally.lock:
                tally.statuses["broken"] += 1
                tally.faults[f"{type(error).__name__}: {error}"] += 1
            continue
        with tally.lock:
            tally.statuses[str(status)] += 1
            if status not in (200, 429):
                tally.faults[f"status {status}"] += 1
            elif hang_up and status == 200:
                tally.hung_up += 1
            elif status == 200:
                tally.seconds.append(time.monotonic() - began_s)
                tally.tokens += reply.get("tokens", 0)
                if reply != expected:
                    tally.faults[f"another reply to {case.body}: {reply} for {expected}"] += 1
        if status == 429:
            time.sleep(min(reply["retry_after"], 1) * draw.random())


def soak(server: Server, cases: dict[int, tuple[Case, Any]], clients: int, seconds: float) -> tuple[Tally, list[float]]:
    """Let the clients run and return what they met, and the server's memory second by second."""
    tally, memory = Tally(), []
    end_s = time.monotonic() + seconds
    threads = [
        threading.Thread(target=client, args=(server, cases, seed, end_s, tally), name=f"client-{seed}")
        for seed in range(clients)
    ]
    for thread in threads:
        thread.start()
    while time.monotonic() < end_s:
        memory.append(server.resident_bytes())
        time.sleep(SAMPLE_SECONDS)
    for thread in threads:
        thread.join()
    return tally, memory


def growth_of(memory: list[float]) -> float:
    """Return how much the memory of the last tenth is above that of the first."""
    part = max(len(memory) // 10, 1)
    return statistics.median(memory[-part:]) / statistics.median(memory[:part]) - 1


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the script's arguments and those behind ``--``."""
    if "--" not in arguments:
        return arguments, []
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


def main() -> int:
    """Run it, print what happened, return 1 for a failure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--tokens", type=int, default=24, help="tokens of a reply")
    parser.add_argument("--queue", type=int, default=48, help="requests that may wait; fewer than clients gives 429s")
    parser.epilog = "Flags after -- are given to edgeprec serve."
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit("error: ended by SIGTERM"))
    own, flags = split(sys.argv[1:])
    asked = parser.parse_args(own)
    server = Server(asked.bundle, asked.queue, flags)
    try:
        alone = [(case, ask(server, case, is_stream=False)) for case in make_cases(asked.tokens)]
        refused = [status for _, (status, _) in alone if status != 200]
        if refused:
            print(f"error: a single client was answered {refused[0]}")
            return 1
        cases = {number: (case, reply) for number, (case, (_, reply)) in enumerate(alone)}
        tally, memory = soak(server, cases, asked.clients, asked.minutes * 60)
        exit_code = server.end()
    finally:
        server.close()
    return report(asked, tally, growth_of(memory), memory, exit_code)


def report(asked: argparse.Namespace, tally: Tally, growth: float, memory: list[float], exit_code: int) -> int:
    """Print the figures and each fault; return 1 where there is one."""
    answered = sum(tally.statuses.values())
    print(f"{asked.clients} clients, {asked.minutes:g} minutes, {os.path.basename(asked.bundle)}, queue {asked.queue}")
    print(f"requests {answered}: {', '.join(f'{code} {count}' for code, count in sorted(tally.statuses.items()))}")
    print(
        f"hung up on purpose {tally.hung_up}; tokens {tally.tokens}, {tally.tokens / (asked.minutes * 60):.1f} a second"
    )
    if len(tally.seconds) > 1:
        tenths = statistics.quantiles(tally.seconds, n=20)
        print(f"seconds a reply: median {statistics.median(tally.seconds):.2f}, 95 % under {tenths[-1]:.2f}")
    print(f"memory {memory[0] / 2**20:.0f} MiB at first, {memory[-1] / 2**20:.0f} MiB at last, growth {growth:+.2%}")
    print(f"replies compared with the single client's {len(tally.seconds)}; exit code after SIGTERM {exit_code}")
    faults = [f"{count} times: {fault}" for fault, count in tally.faults.most_common(10)]
    if not tally.seconds:
        faults.append("no reply was compared")
    if growth >= MAX_GROWTH:
        faults.append(f"memory grew by {growth:.1%}, less than {MAX_GROWTH:.0%} is allowed")
    if exit_code:
        faults.append(f"SIGTERM ended the server with {exit_code}")
    for fault in faults:
        print(f"error: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
