"""One program with a model in it, in a process of its own: answers prompts of token ids that come on its input.

    python scripts/cpu_worker.py '{"kind": "llama", "model": "FILE.gguf", "threads": 2, "ends": [2]}'

Each line in is ``{"way", "prompt", "new_tokens"}``, each line out ``{"tokens", "prefill_s", "decode_s"}`` and what is
known of drafts; the first line out has the versions. ``bench_peers_cpu.py`` talks to it. A kind imports its own package
only, so that any Python that has it will do; decoding is greedy and ends behind one of the ids ``ends``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

Answer = dict[str, Any]
Settings = Mapping[str, Any]
Answering = Callable[[str, list[int], int], Answer]


def main() -> None:
    """Open the program, say its versions, answer line by line."""
    settings = json.loads(sys.argv[1])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    answer, packages = OPENERS[settings["kind"]](settings)
    print(json.dumps({"versions": {package: version(package) for package in packages}}), file=out, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(answer(request["way"], request["prompt"], request["new_tokens"])), file=out, flush=True)


def timed(step: Callable[[], int], begin: Callable[[], int], ends: Sequence[int], new_tokens: int) -> Answer:
    """Return the answer of a program that gives token after token: ``begin`` runs the prompt and gives the first."""
    started = time.perf_counter()
    tokens = [begin()]
    first = time.perf_counter()
    while len(tokens) < new_tokens and tokens[-1] not in ends:
        tokens.append(step())
    return {"tokens": tokens, "prefill_s": first - started, "decode_s": time.perf_counter() - first}


def open_edgeprec(settings: Settings) -> tuple[Answering, Sequence[str]]:
    """Open a bundle; a way is ``fp16``, ``int4``, ``self`` or ``model``, the latter two exact and adaptive.

    The session keeps what the way before cached of the same prompt; ``cached_tokens`` counts it.
    """
    import edgeprec
    from edgeprec.config import DraftingConfig, GenerationConfig, Mode

    session = edgeprec.load(settings["model"], engine="onnxruntime", threads=settings["threads"], sensor="none")

    def answer(way: str, prompt: list[int], new_tokens: int) -> Answer:
        plain = GenerationConfig(max_new_tokens=new_tokens)
        is_plain = way in ("fp16", "int4")
        drafting = plain.drafting if is_plain else DraftingConfig(drafter=way)
        config = GenerationConfig(
            max_new_tokens=new_tokens, mode=Mode(way) if is_plain else Mode.EXACT, drafting=drafting
        )
        generation = session.stream(prompt, config)
        for _ in generation:
            pass
        reply = generation.reply
        stats, cached = reply.stats, min(generation.prompt.cached, len(prompt) - 1)  # the last row always runs
        found = {"rounds": stats.rounds, "drafted": stats.drafted, "accepted": stats.accepted, "cached_tokens": cached}
        times = {"prefill_s": stats.prefill_s, "decode_s": stats.decode_s}
        return {"tokens": list(reply.tokens), **times, **found}

    return answer, ("edgeprec", "onnxruntime")


def open_transformers(settings: Settings) -> tuple[Answering, Sequence[str]]:
    """Open a folder; a way is ``plain`` or ``assisted``, which takes the folder ``draft`` and ``draft_length``."""
    sys.path.append(str(Path(__file__).parent))
    import torch
    from peer_transformers import TransformersPeer, load_model

    torch.set_num_threads(settings["threads"])
    dtype, cpu = getattr(torch, settings["dtype"]), torch.device("cpu")
    common: dict[str, Any] = {"model": load_model(Path(settings["model"]), cpu, dtype)}
    common["eos_token_ids"] = frozenset(settings["ends"])
    peers = {"plain": TransformersPeer(**common)}
    if settings.get("draft") is not None:
        assistant = load_model(Path(settings["draft"]), cpu, dtype)
        peers["assisted"] = TransformersPeer(**common, assistant=assistant, draft_length=settings["draft_length"])

    def answer(way: str, prompt: list[int], new_tokens: int) -> Answer:
        run = peers[way].run([tuple(prompt)], new_tokens=new_tokens, mark=lambda phase: None)
        found = {"rounds": run.rounds, "drafted": run.drafted or 0, "accepted": run.accepted or 0}
        return {"tokens": run.replies[0], "prefill_s": run.prefill_s, "decode_s": run.decode_s, **found}

    return answer, ("transformers", "torch")


def open_genai(settings: Settings) -> tuple[Answering, Sequence[str]]:
    """Open a folder that onnxruntime-genai's model builder wrote."""
    import onnxruntime_genai as genai

    config = genai.Config(settings["model"])
    options = {"intra_op_num_threads": settings["threads"]}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
    model = genai.Model(config)

    def answer(way: str, prompt: list[int], new_tokens: int) -> Answer:
        parameters = genai.GeneratorParams(model)
        parameters.set_search_options(do_sample=False, max_length=len(prompt) + new_tokens)
        generator = genai.Generator(model, parameters)

        def step() -> int:
            generator.generate_next_token()
            return int(generator.get_next_tokens()[0])

        def begin() -> int:
            generator.append_tokens(prompt)
            return step()

        return timed(step, begin, settings["ends"], new_tokens)

    return answer, ("onnxruntime-genai", "onnxruntime")


def open_llama(settings: Settings) -> tuple[Answering, Sequence[str]]:
    """Open a GGUF file with llama.cpp."""
    from llama_cpp import Llama

    threads = settings["threads"]
    model = Llama(settings["model"], n_threads=threads, n_threads_batch=threads, n_ctx=2048, verbose=False)

    def answer(way: str, prompt: list[int], new_tokens: int) -> Answer:
        model.reset()

        def run(tokens: list[int]) -> Iterator[int]:
            while True:
                model.eval(tokens)
                tokens = [model.sample(temp=0.0)]
                yield tokens[0]

        steps = run(prompt)
        return timed(lambda: next(steps), lambda: next(steps), settings["ends"], new_tokens)

    return answer, ("llama-cpp-python",)


OPENERS: dict[str, Callable[[Settings], tuple[Answering, Sequence[str]]]] = {
    "edgeprec": open_edgeprec,
    "transformers": open_transformers,
    "genai": open_genai,
    "llama": open_llama,
}

if __name__ == "__main__":
    main()
