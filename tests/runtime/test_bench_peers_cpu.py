"""Programs in processes of their own, asked in turns: ours and transformers on toys, the others by stand-ins."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import edgeprec
from edgeprec.errors import ConfigError, EngineError

pytest.importorskip("torch")
pytest.importorskip("transformers")

Load = Callable[[str], ModuleType]
PROMPT = (5, 6, 7, 8)
GENAI = """
import json
class Config:
    def __init__(self, folder):
        self.folder = folder
    def overlay(self, text):
        assert json.loads(text)["model"]["decoder"]["session_options"]["intra_op_num_threads"] == 1
class Model:
    def __init__(self, config):
        print("loading", config.folder)
class GeneratorParams:
    def __init__(self, model):
        pass
    def set_search_options(self, do_sample, max_length):
        assert not do_sample
class Generator:
    def __init__(self, model, parameters):
        self.last = 0
    def append_tokens(self, tokens):
        self.last = tokens[-1]
    def generate_next_token(self):
        self.last += 1
    def get_next_tokens(self):
        return [self.last]
"""
BUILDER = """
import pathlib, sys
folder = pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
folder.mkdir(parents=True)
assert sys.argv[sys.argv.index("-p") + 1] == "int4"
(folder / "genai_config.json").write_text(" ".join(sys.argv[sys.argv.index("--extra_options") + 1:]))
"""
LLAMA = """
class Llama:
    def __init__(self, path, n_threads, n_threads_batch, n_ctx, verbose):
        if "missing" in path:
            raise ValueError("Model path does not exist: " + path)
        self.text = []
    def reset(self):
        self.text = []
    def eval(self, tokens):
        self.text += tokens
    def sample(self, temp):
        assert temp == 0.0
        return self.text[-1] + 2
"""


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put packages that count upwards where a worker's Python finds them."""
    root = tmp_path / "packages"
    (root / "onnxruntime_genai" / "models").mkdir(parents=True)
    (root / "onnxruntime_genai" / "__init__.py").write_text(GENAI)
    (root / "onnxruntime_genai" / "models" / "__init__.py").write_text("")
    (root / "onnxruntime_genai" / "models" / "builder.py").write_text(BUILDER)
    (root / "llama_cpp.py").write_text(LLAMA)
    for name in ("onnxruntime_genai", "llama_cpp_python"):
        (root / f"{name}-9.9.dist-info").mkdir()
        (root / f"{name}-9.9.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")
    monkeypatch.setenv("PYTHONPATH", str(root))


@pytest.fixture
def opened(load_script: Load) -> Iterator[Callable[..., Any]]:
    """Return ``opened(settings)``, which starts a worker; all end with the test."""
    module, started = load_script("peer_process"), []

    def start(**settings: Any) -> Any:
        process = module.PeerProcess(sys.executable, {"threads": 1, "ends": [99], **settings})
        started.append(process)
        return process.__enter__()

    yield start
    for process in started:
        process.__exit__(None, None, None)


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize(
    ("kind", "step", "package"), [("genai", 1, "onnxruntime-genai"), ("llama", 2, "llama-cpp-python")]
)
def test_programs_that_give_token_after_token(opened: Callable[..., Any], kind: str, step: int, package: str) -> None:
    """They answer to the limit or an end of text, say their version, and what they print is no answer."""
    worker = opened(kind=kind, model="a model")
    assert worker.versions[package] == "9.9"
    answer = worker.ask("int4", PROMPT, 4)
    assert answer["tokens"] == [8 + step * at for at in (1, 2, 3, 4)]
    assert min(answer["prefill_s"], answer["decode_s"]) >= 0.0
    near = worker.ask("int4", (5, 99 - 2 * step), 9)
    assert near["tokens"] == [99 - step, 99]


@pytest.mark.usefixtures("stand_ins")
def test_program_that_does_not_open(opened: Callable[..., Any]) -> None:
    """The reason comes out, in one sentence."""
    with pytest.raises(EngineError, match=r"the worker llama ended: ValueError: Model path does not exist: missing"):
        opened(kind="llama", model="missing")


def test_program_that_ends_in_the_middle(opened: Callable[..., Any], tiny_pair: Path) -> None:
    """A question it cannot take ends it, and the reason comes out."""
    worker = opened(kind="edgeprec", model=str(tiny_pair))
    with pytest.raises(EngineError, match=r"the worker edgeprec ended: .*100000"):
        worker.ask("fp16", (100_000,), 4)


def test_what_the_way_before_cached_is_counted(opened: Callable[..., Any], tiny_pair: Path) -> None:
    """Ways of one session share its cache, so a prompt's second answer has a shorter prefill, and says so."""
    worker = opened(kind="edgeprec", model=str(tiny_pair))
    first, second, other = (
        worker.ask(way, text, 3) for way, text in (("fp16", PROMPT), ("self", PROMPT), ("fp16", (9, 8)))
    )
    assert [answer["cached_tokens"] for answer in (first, second, other)] == [0, len(PROMPT) - 1, 0]
    assert first["tokens"] == second["tokens"]


def test_python_that_is_not_there(load_script: Load, tmp_path: Path) -> None:
    """A path that is no Python is said as such, for a worker and for the builder."""
    worker = load_script("peer_process").PeerProcess("/no/python", {"kind": "genai"})
    with pytest.raises(EngineError, match="cannot start /no/python: No such file or directory; give a Python"):
        worker.__enter__()
    with pytest.raises(EngineError, match="cannot start /no/python: No such file or directory; give a Python"):
        load_script("peer_folders")._build("/no/python", tmp_path, tmp_path, tmp_path)


def test_folder_of_another_model(load_script: Load, checkpoints: ModuleType, tmp_path: Path) -> None:
    """What lies in the work folder is taken where it is of this model, and refused where it is of another."""
    made = [checkpoints.make_checkpoint(tmp_path / f"toy{seed}", "llama", seed=seed) for seed in (1, 2)]
    make, said = load_script("peer_folders").make_folders, list[str]()
    for _ in range(2):
        make(made[0], None, tmp_path / "work", genai_python=None, report=said.append)
    assert said == [f"writing {tmp_path / 'work/target'}"]
    with pytest.raises(ConfigError, match=r"work/target holds another model than toy2: choose another .* --work"):
        make(made[1], None, tmp_path / "work", genai_python=None, report=said.append)


@pytest.mark.usefixtures("stand_ins")
def test_everything_in_turns(
    load_script: Load,
    checkpoints: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One command writes the models, asks all programs, compares their tokens, and keeps a row of each."""
    common = {"vocab_size": 288, "max_positions": 256}
    made = checkpoints.make_checkpoint(tmp_path / "toy", "llama", **common)
    draft = checkpoints.make_checkpoint(tmp_path / "draft", "llama", **common, num_layers=1, seed=3)
    bundle = edgeprec.export_bundle(made, tmp_path / "toy.edgeprec", draft=str(draft))
    words = ["bench_peers_cpu.py", str(bundle), "--draft", str(draft), "--genai-python", sys.executable]
    words += ["--gguf", "toy-0.5B.Q4_1.gguf", "--prompts", "3", "--tokens", "6", "--repeats", "2", "--threads", "1"]
    words += ["--prompt-tokens", "80", "--work", str(tmp_path / "work"), "-o", str(tmp_path / "cpu.jsonl")]
    monkeypatch.setattr(sys, "argv", words)
    load_script("bench_peers_cpu").main()
    records = [json.loads(line) for line in (tmp_path / "cpu.jsonl").read_text().splitlines()]
    assert [(record["engine"], record["mode"], record["drafter"]) for record in records] == [
        ("onnxruntime", "fp16", None),
        ("onnxruntime", "int4", None),
        ("onnxruntime", "exact", "self"),
        ("onnxruntime", "exact", "model"),
        ("transformers float32", "fp16", None),
        ("transformers float32", "exact", "model"),
        ("onnxruntime-genai int4", "int4", None),
        ("llama.cpp toy-0.5B.Q4_1", "int4", None),
    ]
    for record in records:
        assert (record["repeats"], record["is_complete"], record["replies"]) == (2, True, 3)
        assert [len(run["generations"]) for run in record["runs"]] == [3, 3]
        replies = [one for run in record["runs"] for one in run["generations"]]
        if record["engine"] == "onnxruntime":
            is_told = record["mode"] != "exact" or all(r["cached_tokens"] == r["prompt_tokens"] - 1 for r in replies)
        else:
            is_told = not any(reply["cached_tokens"] for reply in replies)
        assert is_told
    same = {(record["engine"], record["mode"], record["drafter"]): record["identical_to_fp16"] for record in records}
    assert same["onnxruntime", "exact", "model"] == same["onnxruntime", "exact", "self"] == 3
    assert same["transformers float32", "fp16", None] == same["transformers float32", "exact", "model"] == 3
    assert same["llama.cpp toy-0.5B.Q4_1", "int4", None] == 0
    assert (tmp_path / "work/genai-int4/genai_config.json").read_text().startswith("int4_accuracy_level=4")
    printed = capsys.readouterr().out
    assert "| transformers float32, assisted K=5 |" in printed
    assert "onnxruntime-genai 9.9" in printed


def test_medians_and_ratios(load_script: Load) -> None:
    """A median over all replies of all repeats; ratios are to the fastest assisted way and to genai."""
    module = load_script("bench_peers_cpu")
    process = load_script("peer_process").PeerProcess("python", {"kind": "x"})
    job = module.Job("a", "prose", (1,), "", 11)

    def way(name: str, asks: str, *seconds: float) -> Any:
        config = module.GenerationConfig(mode="fp16")
        found = module.Way(name, process, asks, config)
        answers = [{"tokens": [0] * 11, "prefill_s": 0.1, "decode_s": second} for second in seconds]
        found.repeats = [[module._generated(found, job, answer) for answer in answers]]
        return found

    ways = [way("fp16", "fp16", 1.0, 2.0, 0.5), way("t, assisted K=5", "assisted", 4.0), way("genai", "int4", 0.5)]
    lines = module.table(ways).splitlines()
    assert lines[2] == "| fp16 | 10.0 (7.5-15.0) | 1.00x | 4.00x | 0.50x | - | 3 of 3 |"
    assert lines[3].startswith("| t, assisted K=5 | 2.5 (2.5-2.5) | 0.25x | 1.00x | 0.12x |")
