"""Other programs measured like one's own: transformers on toy checkpoints, vLLM by a stand-in for its package."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from edgeprec.config import Mode
from edgeprec.devices import simulated
from edgeprec.devices.meter import Meter
from edgeprec.errors import ConfigError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

Load = Callable[[str], ModuleType]
PROMPTS = [(5, 6, 7, 8), (9, 10), (11, 12, 13, 14, 15, 16, 17)]
NEVER = frozenset({287})


@pytest.fixture(scope="module")
def folders(checkpoints: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a toy target and a draft for it."""
    root, common = tmp_path_factory.mktemp("peers"), {"vocab_size": 288, "max_positions": 512}
    target = checkpoints.make_checkpoint(root / "target", "llama", **common)
    draft = checkpoints.make_checkpoint(root / "draft", "llama", **common, num_layers=1, seed=3)
    return {"target": target, "draft": draft}


@pytest.fixture(scope="module")
def models(load_script: Load, folders: dict[str, Path]) -> dict[str, Any]:
    """Load both."""
    load = load_script("peer_transformers").load_model
    return {name: load(folder, torch.device("cpu"), torch.float32) for name, folder in folders.items()}


def silent(phase: str) -> None:
    """Take a mark of the meter and forget it."""


def greedy(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    """Return what a model says, one whole pass a token."""
    text = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize("is_compiled", [False, True])
def test_padded_batch_gives_every_text(load_script: Load, models: dict[str, Any], is_compiled: bool) -> None:
    """Prompts of three lengths beside each other, with either cache, say what each says alone."""
    peer = load_script("peer_transformers").TransformersPeer(
        model=models["target"], eos_token_ids=NEVER, is_compiled=is_compiled
    )
    marks: list[str] = []
    run = peer.run(PROMPTS, new_tokens=9, mark=marks.append)
    assert run.replies == [greedy(models["target"], prompt, 9) for prompt in PROMPTS]
    assert marks == ["prefill", "decode"]
    assert (run.rounds, run.drafted, run.accepted) == (8, None, None)
    assert min(run.prefill_s, run.decode_s) > 0.0
    assert (peer.way.mode, peer.way.draft_length) == (Mode.FP16, 0)


def test_reply_ends_where_the_model_ends_it(load_script: Load, models: dict[str, Any]) -> None:
    """The end of text belongs to a reply, padding behind it does not; the longest reply goes on."""
    texts = [greedy(models["target"], prompt, 9) for prompt in PROMPTS]
    end = texts[0][3]
    peer = load_script("peer_transformers").TransformersPeer(model=models["target"], eos_token_ids=frozenset({end}))
    run = peer.run(PROMPTS, new_tokens=9, mark=silent)
    for text, reply in zip(texts, run.replies, strict=True):
        assert reply == (text[: text.index(end) + 1] if end in text else text)
    assert len(run.replies[0]) == texts[0].index(end) + 1 < max(map(len, run.replies))


def test_assisted_gives_the_targets_text(load_script: Load, models: dict[str, Any]) -> None:
    """With a poor assistant and with the target itself, which is accepted nearly always; rounds show it."""
    make = load_script("peer_transformers").TransformersPeer
    common: dict[str, Any] = {"model": models["target"], "eos_token_ids": NEVER, "draft_length": 5}
    found = {}
    for name in ("draft", "target"):
        peer = make(**common, assistant=models[name])
        found[name] = peer.run(PROMPTS[:1], new_tokens=24, mark=silent)
        assert found[name].replies == [greedy(models["target"], PROMPTS[0], 24)]
        assert found[name].accepted + found[name].rounds == 24
    assert found["target"].rounds <= 5 < found["draft"].rounds
    assert peer.way.mode is Mode.EXACT


@pytest.fixture
def peers(
    load_script: Load, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[dict[str, Any]]]:
    """Return ``peers(*flags)``, which runs the script and returns the lines of its file."""
    module, saved = load_script("bench_peers_gpu"), tmp_path / "peers.jsonl"
    words = [str(folders["target"]), "--draft", str(folders["draft"]), "--prompt-tokens", "90", "--tokens", "8"]
    words += ["--seconds", "0.05", "--repeats", "2", "--batches", "1,3", "-o", str(saved)]

    def run(*flags: str) -> list[dict[str, Any]]:
        monkeypatch.setattr(sys, "argv", ["bench_peers_gpu.py", *words, *flags])
        module.main()
        return [json.loads(line) for line in saved.read_text().splitlines()] if saved.exists() else []

    return run


def test_rows_like_ones_own(peers: Callable[..., list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]) -> None:
    """Every way and batch has a row of the sweep's schema, versions beside it; assisted takes one sequence only."""
    records = peers()
    name = f"transformers {transformers.__version__}"
    assert [(r["engine"], r["test"]["sequences"], r["mode"], r["draft_length"]) for r in records] == [
        (f"{name} eager", 1, "fp16", None),
        (f"{name} eager", 3, "fp16", None),
        (f"{name} compiled", 1, "fp16", None),
        (f"{name} compiled", 3, "fp16", None),
        (f"{name} assisted", 1, "exact", 5),
    ]
    for record in records:
        assert (record["schema"], record["is_complete"]) == ("edgeprec.bench", True)
        assert record["tokens_per_s"]["count"] == 2
        assert record["versions"]["transformers"] == transformers.__version__
        assert record["energy_note"] == "no meter: this is no GPU"
        assert record["loop_share"] is not None
        assert record["bits_read_per_weight"] is None
    assert 0.0 <= records[-1]["acceptance_rate"] <= 1.0
    assert records[0]["acceptance_rate"] is None
    assert records[1]["batch"]["mean_sequences"] == pytest.approx(3.0, abs=0.5)
    assert f"| 1 | {name} assisted: draft K=5 |" in capsys.readouterr().out
    assert peers() == records


def test_joules_of_a_peer(
    load_script: Load, peers: Callable[..., list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The meter's window lies around each repeat, prefill and decoding apart."""
    module = load_script("bench_peers_gpu")
    monkeypatch.setattr(module, "IDLE_S", 0.3)
    bench = module.PeerBench
    with simulated("agx-orin") as board:
        meter = Meter(board.sensor(), period_ms=20)
        monkeypatch.setattr(module, "PeerBench", lambda **values: bench(**values | {"meter": meter}))
        (record,) = peers("--configs", "eager", "--batches", "1", "--seconds", "0.5")
    energy = record["energy"]
    assert energy["repeats"] == 2
    assert energy["joules_per_token"]["mean"] > energy["joules_per_token_above_idle"]["mean"]
    assert {"prefill", "decode", "between"} <= set(energy["by_phase"])


def test_warm_up_has_the_longest_of_all(
    load_script: Load, models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No prompt or reply of a repeat is longer than those before the clock started: a fixed cache need not grow."""
    module, prompts = load_script("peer_bench"), load_script("batch_prompts")
    seen: list[tuple[int, int]] = []
    peer_class = load_script("peer_transformers").TransformersPeer
    run = peer_class.run

    def watched(self: Any, given: Any, *, new_tokens: int, mark: Any) -> Any:
        seen.append((max(map(len, given)), new_tokens))
        return run(self, given, new_tokens=new_tokens, mark=mark)

    monkeypatch.setattr(peer_class, "run", watched)
    peer = peer_class(model=models["target"], eos_token_ids=NEVER, is_compiled=True)
    texts = prompts.SweepPrompts(lambda text: [len(word) for word in text.split()], most_tokens=40)
    bench = module.PeerBench(
        prompts=texts, new_tokens=6, seconds=0.3, meter=None, meter_note=None, has_time=lambda: True
    )
    assert module._prompts_at_once(peer, bench, 2) == 2
    warm = len(seen)
    module._repeat(peer, bench, sequences=2, count=2, number=1)
    assert len(seen) > warm
    assert max(seen[warm:]) <= max(seen[:warm])
    assert seen[0] == (max(len(job.tokens) for job in texts.jobs(200, repeat=0, new_tokens=1)), 6)


def test_no_time(peers: Callable[..., list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is loaded when the time is over."""
    assert peers("--limit-s", "0") == []
    assert "time is up: left out: eager, compiled, assisted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--configs", "fast"), "--configs has 'fast', expected some of eager, compiled, assisted, vllm fp16"),
        (("--configs", "vllm int4"), "--configs has 'vllm int4', which needs --int4: give the folder"),
    ],
)
def test_what_cannot_be_asked(peers: Callable[..., list[dict[str, Any]]], flags: tuple[str, ...], message: str) -> None:
    """Unknown ways, and ways whose checkpoint is missing."""
    with pytest.raises(ConfigError, match=message):
        peers(*flags)


def test_broken_peer_is_left_out(
    load_script: Load,
    peers: Callable[..., list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The others are measured all the same."""
    peer = load_script("peer_transformers").TransformersPeer
    run = peer.run

    def broken(self: Any, prompts: Any, **values: Any) -> Any:
        if self.is_compiled:
            raise RuntimeError("CUDA out of memory")
        return run(self, prompts, **values)

    monkeypatch.setattr(peer, "run", broken)
    records = peers("--configs", "eager,compiled", "--batches", "1")
    assert [record["engine"].split()[-1] for record in records] == ["eager"]
    assert "compiled: left out: CUDA out of memory" in capsys.readouterr().out


class StandInEngine:
    """What the script uses of vLLM's class: one token more than the prompt's last, again and again."""

    made: list[dict[str, Any]] = []  # noqa: RUF012

    def __init__(self, **settings: Any) -> None:
        self.made.append(settings)
        self._drafts = 0

    def generate(self, prompts: list[dict[str, list[int]]], sampling: Any, *, use_tqdm: bool) -> list[Any]:
        """Answer every prompt to its limit."""
        assert not use_tqdm
        self._drafts += 10 * len(prompts)
        texts = [
            [prompt["prompt_token_ids"][-1] % 280 + 1 + at for at in range(sampling.max_tokens)] for prompt in prompts
        ]
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=tuple(text))]) for text in texts]

    def get_metrics(self) -> list[Any]:
        """Return two counters of drafting, one that has no single value, and another one."""
        return [
            SimpleNamespace(name="vllm:spec_decode_num_draft_tokens", value=self._drafts),
            SimpleNamespace(name="vllm:spec_decode_num_accepted_tokens", value=self._drafts // 2),
            SimpleNamespace(name="vllm:spec_decode_num_accepted_tokens_per_pos", values=[1, 2]),
            SimpleNamespace(name="vllm:prompt_tokens", value=3),
        ]


def test_vllm(load_script: Load, peers: Callable[..., list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch) -> None:
    """One way a process: its checkpoint, slots and draft go in; rows say what is inside their time."""
    stand_in = SimpleNamespace(LLM=StandInEngine, SamplingParams=lambda **values: SimpleNamespace(**values))
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    StandInEngine.made.clear()
    record, alone = peers("--configs", "vllm draft", "--batches", "2,1")
    (settings,) = StandInEngine.made
    assert (settings["max_num_seqs"], settings["dtype"], settings["max_model_len"]) == (2, "float16", 106)
    assert settings["speculative_config"]["num_speculative_tokens"] == 5
    assert settings["speculative_config"]["model"].endswith("draft")
    assert (record["mode"], record["drafter"], record["draft_length"]) == ("exact", "model", 5)
    assert record["acceptance_rate"] == 0.5
    assert [r["test"]["sequences"] for r in (record, alone)] == [2, 1]
    assert "prefill lies inside the decoding time" in record["notes"]
    assert record["batch"]["rounds"] > 4 * alone["batch"]["rounds"] / 2  # more prompts than slots
    peers("--configs", "vllm int4", "--batches", "2", "--int4", "elsewhere")
    assert StandInEngine.made[-1]["model"] == "elsewhere"
    assert "speculative_config" not in StandInEngine.made[-1]


def test_engines_run_in_processes_of_their_own(
    load_script: Load, peers: Callable[..., list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several engines are several processes of the same command, each with the time that is left."""
    module, commands = load_script("bench_peers_gpu"), []
    monkeypatch.setattr(module.subprocess, "run", lambda command, check: commands.append(command))
    peers("--vllm", "--limit-s", "100")
    assert [command[command.index("--configs") + 1] for command in commands] == [
        "eager,compiled,assisted",
        "vllm fp16",
        "vllm draft",
    ]
    assert all(command[0] == sys.executable for command in commands)
    assert float(commands[-1][-1]) <= 100.0
