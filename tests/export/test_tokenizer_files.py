"""What a Hugging Face folder says of its tokenizer ends up in the bundle's three files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2
import pytest
from tokenizers import AddedToken, Tokenizer, processors

from edgeprec.errors import ConfigError
from edgeprec.export.checkpoint import open_checkpoint
from edgeprec.export.tokenizer_files import SpecialTokens, TokenizerFiles, build_tokenizer_files

Edit = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture
def folder(checkpoints: ModuleType, tmp_path: Path) -> Path:
    """Return a checkpoint with the tiny tokenizer: end of text 0, start of turn 1, end of turn 2."""
    return Path(checkpoints.make_checkpoint(tmp_path / "model", "llama"))


def rewrite(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None drops one."""
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def files_of(folder: Path) -> TokenizerFiles:
    """Return the tokenizer files of a folder."""
    return open_checkpoint(str(folder)).tokenizer


def test_everything_a_bundle_needs(folder: Path) -> None:
    """The tokenizer is kept byte for byte, and generation.json has every key."""
    files = files_of(folder)
    assert files.tokenizer_json == (folder / "tokenizer.json").read_bytes()
    assert files.generation == {
        "bos_token_id": 0,
        "bos_token": "<|endoftext|>",
        "eos_token_ids": [2, 0],
        "eos_token": "<|im_end|>",
        "pad_token_id": 2,
        "add_bos_token": False,
        "max_positions": 128,
    }
    assert json.loads(json.dumps(files.generation)) == files.generation


@pytest.mark.parametrize(
    ("generation_eos", "config_eos", "named_eos", "template", "expected"),
    [
        ([2, 0], 2, "<|im_end|>", None, [2, 0]),
        (0, 0, "<|endoftext|>", None, [0]),
        (0, 0, "<|endoftext|>", "... <|im_end|> ...", [0, 2]),
        (None, None, None, None, [0]),
        (None, 5, None, None, [5, 0]),
        (None, None, "<|im_end|>", None, [2, 0]),
        ([5, 6], 7, "<|im_end|>", None, [2, 5, 6, 7, 0]),
    ],
)
def test_every_end_token_is_found(
    folder: Path, generation_eos: Any, config_eos: Any, named_eos: Any, template: str | None, expected: list[int]
) -> None:
    """Ends come from all files, the tokenizer's first, with end of text and what the chat template ends turns with."""
    rewrite(folder / "generation_config.json", eos_token_id=generation_eos)
    rewrite(folder / "config.json", eos_token_id=config_eos)
    rewrite(folder / "tokenizer_config.json", eos_token=named_eos, chat_template=template)
    assert files_of(folder).generation["eos_token_ids"] == expected


def test_end_of_turn_must_be_a_special_token(folder: Path) -> None:
    """Ordinary text that looks like an end of turn does not end a reply."""
    rewrite(folder / "tokenizer_config.json", chat_template="<|eot_id|><|im_end|>", eos_token="<|endoftext|>")
    rewrite(folder / "generation_config.json", eos_token_id=0)
    rewrite(folder / "config.json", eos_token_id=0)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken("<|eot_id|>", special=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    assert files_of(folder).generation["eos_token_ids"] == [0, 2]


@pytest.mark.parametrize(
    ("bos", "flag", "has_template", "expected"),
    [
        ("<|im_start|>", None, True, True),
        ("<|im_start|>", None, False, False),
        ("<|im_start|>", False, True, False),
        ("<|im_start|>", True, False, True),
        (None, True, False, False),
    ],
)
def test_whether_texts_begin_with_a_token(
    folder: Path, bos: str | None, flag: bool | None, has_template: bool, expected: bool
) -> None:
    """add_bos_token follows the setting, else what the tokenizer does by itself; never without such a token."""
    rewrite(folder / "tokenizer_config.json", bos_token=bos, add_bos_token=flag)
    rewrite(folder / "generation_config.json", bos_token_id=None)
    rewrite(folder / "config.json", bos_token_id=None)
    if has_template:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
        )
        tokenizer.save(str(folder / "tokenizer.json"))
    generation = files_of(folder).generation
    assert generation["add_bos_token"] is expected
    assert generation["bos_token_id"] == (1 if bos else None)


def test_special_tokens_given_as_objects(folder: Path) -> None:
    """Older files write a special token as an object with its text."""
    rewrite(folder / "tokenizer_config.json", bos_token={"content": "<|im_start|>", "lstrip": False})
    assert files_of(folder).generation["bos_token"] == "<|im_start|>"


def test_chat_template_from_wherever_it_lies(folder: Path, tiny_tokenizer: ModuleType) -> None:
    """The template's own file beats the settings; of several named ones the default is taken; none is None."""
    assert files_of(folder).chat_template == tiny_tokenizer.CHAT_TEMPLATE
    named = [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}]
    rewrite(folder / "tokenizer_config.json", chat_template=named)
    assert files_of(folder).chat_template == "D"
    (folder / "chat_template.jinja").write_text("file")
    assert files_of(folder).chat_template == "file"
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").unlink()
    assert files_of(folder).chat_template is None


def test_template_renders_and_tokenizes(folder: Path) -> None:
    """A rendered turn encodes to the special tokens, not to their letters."""
    files = files_of(folder)
    assert files.chat_template is not None
    turns = [{"role": "user", "content": "the end"}]
    text = jinja2.Template(files.chat_template).render(messages=turns, add_generation_prompt=True)
    ids = Tokenizer.from_buffer(files.tokenizer_json).encode(text, add_special_tokens=False).ids
    assert ids.count(1) == 2
    assert ids.count(2) == 1


@pytest.mark.parametrize("entries", [[], ["plain"], [{"name": "tools", "template": "T"}], [{}]])
def test_named_templates_without_a_default(folder: Path, entries: list[Any]) -> None:
    """A list of templates without a default one counts as no template."""
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    rewrite(folder / "tokenizer_config.json", chat_template=entries)
    assert files_of(folder).chat_template is None


def test_template_that_is_no_text(folder: Path) -> None:
    """A template file of another encoding is refused by name."""
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"chat_template\.jinja is not UTF-8"):
        files_of(folder)


def test_settings_that_are_not_json(folder: Path) -> None:
    """A damaged settings file is named rather than ignored."""
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json is not JSON"):
        files_of(folder)


@pytest.mark.parametrize(
    ("vocab_size", "eos", "words"),
    [(20, (2,), ["the id", "20 rows"]), (400, (500,), ["special token 500", "400 rows"])],
)
def test_ids_beyond_the_embedding(
    tiny_tokenizer: ModuleType, vocab_size: int, eos: tuple[int, ...], words: list[str]
) -> None:
    """An id without an embedding row is refused: tokenizer and weights do not belong together."""
    special = SpecialTokens(bos_token_id=0, eos_token_ids=eos, pad_token_id=None, add_bos=None)
    with pytest.raises(ConfigError) as caught:
        build_tokenizer_files(
            tiny_tokenizer.build_tokenizer(300).to_str().encode(),
            chat_template=None,
            special=special,
            vocab_size=vocab_size,
            max_positions=64,
            origin="tokenizer.json",
        )
    assert all(word in str(caught.value) for word in words), str(caught.value)
