"""Draw a draft's training text from the target itself, and mix given text in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from edgeprec.errors import ConfigError
from edgeprec.export.distill_model import Decoder
from edgeprec.export.distill_prompts import PromptWriter
from edgeprec.export.distill_samples import Samples
from edgeprec.export.distill_sampling import Row, Sampler
from edgeprec.export.progress import Progress, ProgressEvent
from edgeprec.export.text_codec import TextCodec

__all__ = ["LEAST_TEXT_TOKENS", "OPENING_TOKENS", "continue_greedily", "encode_text", "write_samples"]

LEAST_TEXT_TOKENS = 256
OPENING_TOKENS = 112
_LARGEST_TEXT_SHARE = 0.2  # of the rows; more of the given text than this and the draft would learn it, not the target


def encode_text(codec: TextCodec, text: str) -> list[int]:
    """Return the ids of the given text.

    Raises:
        ConfigError: it is empty or too short to learn from.
    """
    ids = list(codec.tokenizer.encode(text, add_special_tokens=False).ids)
    if len(ids) < LEAST_TEXT_TOKENS:
        raise ConfigError(
            f"the training text has {len(ids)} tokens, expected at least {LEAST_TEXT_TOKENS}: give a longer text"
        )
    return ids


def write_samples(
    teacher: Decoder,
    codec: TextCodec,
    given: Sequence[int],
    *,
    token_count: int,
    length: int,
    rows: int,
    seed: int,
    progress: Progress,
    is_over: Callable[[], bool],
) -> Samples:
    """Return about ``token_count`` tokens in rows of ``length``, drawn ``rows`` at a time, given text among them.

    Fewer where ``is_over`` says that time is up, but at least one batch.
    """
    device = teacher.ends.head.device
    writer = PromptWriter(codec, given, length=length, seed=seed)
    generator = torch.Generator(device).manual_seed(seed)
    sampler = Sampler(teacher, rows=rows, length=length)
    total_rows = max(rows, round(token_count / length))
    drawn: list[Samples] = []
    while not drawn or (rows * len(drawn) < total_rows and not is_over()):
        drawn.append(_draw(sampler, writer, codec, generator, length=length))
        done = min(rows * len(drawn), total_rows)
        progress(ProgressEvent("sample", done * length, total_rows * length))
    text = Samples.of_text(np.asarray(given, np.int32), length)
    samples = Samples.join([text.rows(slice(0, int(_LARGEST_TEXT_SHARE * rows * len(drawn)))), *drawn])
    return samples.rows(np.random.default_rng(seed).permutation(len(samples)))


def _draw(
    sampler: Sampler, writer: PromptWriter, codec: TextCodec, generator: torch.Generator, *, length: int
) -> Samples:
    """Let the target write messages, then answer them."""
    openings = writer.openings(sampler.rows)
    written = sampler.run(openings, min(OPENING_TOKENS, length // 2), generator).tolist()
    prompts = [writer.follow_up(opening, ids) for opening, ids in zip(openings, written, strict=True)]
    tokens = sampler.run(prompts, length, generator).to(torch.int32).cpu().numpy()
    return Samples.of_replies(tokens, np.array([len(row.prompt) for row in prompts], np.int32), codec.end_ids)


def continue_greedily(
    teacher: Decoder, codec: TextCodec, prompts: Sequence[tuple[int, ...]], *, new_tokens: int
) -> Samples:
    """Return each prompt with ``new_tokens`` of the target's greedy continuation, learned up to its end token."""
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    total = int(lengths.max()) + new_tokens
    sampler = Sampler(teacher, rows=len(prompts), length=total)
    generator = torch.Generator(teacher.ends.head.device).manual_seed(0)
    tokens = sampler.run([Row(prompt) for prompt in prompts], total, generator).to(torch.int32).cpu().numpy()
    samples = Samples.of_replies(tokens, lengths, codec.end_ids)
    stops = np.minimum(samples.last, lengths - 1 + new_tokens).astype(np.int32)
    return Samples(samples.tokens, samples.first, stops)
