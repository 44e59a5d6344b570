"""Find tokenizer, chat template and special tokens among the files of a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgeprec.architecture import ModelConfig
from edgeprec.errors import ConfigError
from edgeprec.export.json_object import JsonObject, read_json_object, read_text_file
from edgeprec.export.tokenizer_files import SpecialTokens, TokenizerFiles, build_tokenizer_files, parse_tokenizer

__all__ = ["TOKENIZER_FILES", "read_hf_tokenizer"]

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def read_hf_tokenizer(folder: Path, raw_config: JsonObject, config: ModelConfig) -> TokenizerFiles:
    """Return the tokenizer files of the checkpoint in ``folder``.

    Raises:
        ConfigError: ``tokenizer.json`` is absent or damaged, or a file beside it is not JSON.
    """
    path = folder / "tokenizer.json"
    try:
        tokenizer_json = path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(_absent(folder)) from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    settings = _optional(folder / "tokenizer_config.json")
    generation = _optional(folder / "generation_config.json")
    return build_tokenizer_files(
        tokenizer_json,
        chat_template=_chat_template(folder, settings),
        special=_special_tokens(tokenizer_json, str(path), [settings, generation, raw_config]),
        vocab_size=config.vocab_size,
        max_positions=config.max_positions,
        origin=str(path),
    )


def _absent(folder: Path) -> str:
    others = [name for name in ("tokenizer.model", "vocab.json") if (folder / name).exists()]
    found = f"only {' and '.join(others)}" if others else "none"
    return (
        f"{folder} has no tokenizer: expected tokenizer.json, found {found}; "
        "save the checkpoint with a fast tokenizer, which writes that file"
    )


def _optional(path: Path) -> JsonObject:
    return read_json_object(path) if path.exists() else JsonObject({}, origin=str(path))


def _chat_template(folder: Path, settings: JsonObject) -> str | None:
    path = folder / "chat_template.jinja"
    if path.exists():
        return read_text_file(path)
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _special_tokens(tokenizer_json: bytes, origin: str, sources: list[JsonObject]) -> SpecialTokens:
    """Merge what tokenizer, generation and model settings say; the tokenizer's own end token comes first."""
    tokenizer = parse_tokenizer(tokenizer_json, origin=origin)
    settings, *others = sources

    def named(key: str) -> list[int]:
        index = tokenizer.token_to_id(_content(settings.get(key)) or "")
        return [] if index is None else [index]

    def ids(key: str) -> list[int]:
        return [*named(key), *(value for source in others for value in _as_ids(source.get(f"{key}_id")))]

    add_bos = settings.get("add_bos_token")
    return SpecialTokens(
        bos_token_id=next(iter(ids("bos_token")), None),
        eos_token_ids=tuple(ids("eos_token")),
        pad_token_id=next(iter(ids("pad_token")), None),
        add_bos=add_bos if isinstance(add_bos, bool) else None,
    )


def _content(token: Any) -> str | None:
    """Return a token's text: settings hold it plain or as an object with ``content``."""
    return token.get("content") if isinstance(token, dict) else token


def _as_ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [entry for entry in values if isinstance(entry, int) and not isinstance(entry, bool)]
