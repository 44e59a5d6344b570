"""From the flags of ``bench`` to its cases: which rows there are, and in which order they run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from edgeprec.cli.options import config_from
from edgeprec.config import DrafterKind, GenerationConfig, Mode
from edgeprec.errors import ConfigError
from edgeprec.prompts import load_prompts
from edgeprec.runtime.benchmark_case import Case, CaseKind, SetPrompt

__all__ = ["make_cases", "peer_cases", "read_prompt_set"]

DEFAULT_PROMPT_TOKENS = (512,)
_SHIPPED = {"small": "short", "large": "test"}
_DRAFTING = (Mode.EXACT, Mode.BOUNDED)


def make_cases(values: Mapping[str, Any]) -> list[Case]:
    """Return the cases of the product's own engine.

    Raises:
        ConfigError: the flags exclude each other, or ask for nothing.
    """
    prompts = None if values["prompts"] is None else read_prompt_set(values["prompts"])
    if prompts is not None and any(values["depths"]) and not (_prompt_tokens(values) or values["pairs"]):
        raise ConfigError("-d is for synthetic tests, --prompts has real ones: leave out one of them")
    cases = list(_cases(values, prompts, list(_configs(values))))
    if not cases:
        raise ConfigError("there is nothing to measure: -p and -n are both 0; give one of them, -pg or --prompts")
    return cases


def peer_cases(values: Mapping[str, Any]) -> list[Case]:
    """Return the cases of a server: the same tests once, since it has one mode only."""
    prompts = None if values["prompts"] is None else read_prompt_set(values["prompts"])
    config = replace(_plain(config_from(values)), mode=Mode.FP16)
    return list(_cases(dict(values) | {"batch_rows": None}, prompts, [config]))


def _configs(values: Mapping[str, Any]) -> Iterator[GenerationConfig]:
    """Yield every mode, those that draft with every draft length."""
    base = config_from(values)
    for mode in values["modes"]:
        for length in values["draft_lengths"] if mode in _DRAFTING else (None,):
            yield replace(base, mode=mode, drafting=replace(base.drafting, draft_length=length))


def _cases(
    values: Mapping[str, Any], prompts: tuple[SetPrompt, ...] | None, configs: list[GenerationConfig]
) -> Iterator[Case]:
    rows = values["batch_rows"] or (None,)
    only_rows = rows[0] if len(rows) == 1 else None
    new_tokens = [count for count in values["new_tokens"] if count]
    for sequences, depth in product(values["sequences"], values["depths"]):
        common: dict[str, Any] = {"sequences": sequences, "depth_tokens": depth}
        for count, most in product(_prompt_tokens(values), rows):
            plain = _plain(configs[0])
            yield Case(kind=CaseKind.PREFILL, config=plain, prompt_tokens=count, prefill_rows=most, **common)
        for (prompt, new), most, config in product(values["pairs"] or (), rows, configs):
            tokens = {"prompt_tokens": prompt, "new_tokens": new}
            yield Case(kind=CaseKind.BOTH, config=config, prefill_rows=most, **tokens, **common)
        for count, config in product(new_tokens if prompts is None else (), configs):
            yield Case(kind=CaseKind.DECODE, config=config, new_tokens=count, **common)
    for sequences, count, config in product(values["sequences"], new_tokens if prompts else (), configs):
        yield Case(
            kind=CaseKind.PROMPTS,
            config=config,
            new_tokens=count,
            prefill_rows=only_rows,
            sequences=sequences,
            prompt_set=_set_name(values["prompts"]),
            prompts=prompts or (),
        )


def _prompt_tokens(values: Mapping[str, Any]) -> list[int]:
    given = values["prompt_tokens"]
    if given is None:
        given = DEFAULT_PROMPT_TOKENS if values["prompts"] is None else ()
    return [count for count in given if count]


def _plain(config: GenerationConfig) -> GenerationConfig:
    """Return the config of a prefill, which is FP16's in every mode."""
    drafting = replace(config.drafting, drafter=DrafterKind.NONE, three_level=False)
    return replace(config, mode=Mode.FP16, drafting=drafting)


def _set_name(given: str) -> str:
    """Return what a table calls a set of prompts."""
    return given if given in _SHIPPED else Path(given).name


def read_prompt_set(given: str) -> tuple[SetPrompt, ...]:
    """Return a shipped set, or the prompts of a file: one a line, or a ``.jsonl`` of ``text``, ``kind`` and ``id``.

    Raises:
        ConfigError: there is no such set or file, or it holds no prompt.
    """
    if given in _SHIPPED:
        shipped = load_prompts(_SHIPPED[given])  # type: ignore[arg-type]
        return tuple(SetPrompt(prompt.id, str(prompt.kind), prompt.text) for prompt in shipped)
    from edgeprec.cli.prompt import read_prompt_lines

    path = Path(given)
    if not path.exists():
        raise ConfigError(f"--prompts is {given!r}: there is no such file; small and large are the sets that ship")
    lines = read_prompt_lines(path)
    if path.suffix == ".jsonl":
        return tuple(_parsed(line, f"{path}, line {number}", number) for number, line in enumerate(lines, 1))
    return tuple(SetPrompt(f"line-{number}", "file", line) for number, line in enumerate(lines, 1))


def _parsed(line: str, where: str, number: int) -> SetPrompt:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is no JSON ({error}): write one object a line") from error
    text = fields.get("text") if isinstance(fields, dict) else None
    if not isinstance(text, str) or not text:
        raise ConfigError(f'{where} has no prompt: write {{"text": "...", "kind": "code"}}')
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{where} has a text that is not valid UTF-8 at character {error.start}: correct it"
        ) from error
    return SetPrompt(str(fields.get("id", f"line-{number}")), str(fields.get("kind", "file")), text)
