"""The prompt of a command: from ``-p``, from a file, or from standard input."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from edgeprec.errors import ConfigError

__all__ = ["decode_prompt", "read_prompt", "read_prompt_lines"]

_LINE_END = re.compile(r"\r\n|\n|\r")


def read_prompt(*, text: str | None, file: Path | None, stdin: Callable[[], bytes] | None) -> str:
    """Return the one prompt that was given; ``stdin`` reads standard input and is None where ``-`` was not given.

    Raises:
        ConfigError: none or more than one was given, it is empty, not readable or not UTF-8.
    """
    given = [name for name, value in (("-p", text), ("-f", file), ("-", stdin)) if value is not None]
    if len(given) != 1:
        got = "nothing" if not given else " and ".join(given)
        raise ConfigError(f"a prompt is needed once, as -p TEXT, -f FILE or - for standard input, got {got}")
    if text is not None:
        return _checked(text)
    if file is not None:
        return _checked(_without_last_newline(decode_prompt(_read(file), where=str(file))))
    assert stdin is not None
    return _checked(_without_last_newline(decode_prompt(stdin(), where="standard input")))


def decode_prompt(data: bytes, *, where: str) -> str:
    """Return ``data`` as text.

    Raises:
        ConfigError: it is not UTF-8; the message names the offset of the first wrong byte.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{where} is not valid UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}; convert it first"
        ) from error


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"the prompt file {file} cannot be read: {error.strerror}") from error


def _without_last_newline(text: str) -> str:
    """Drop the newline that editors and ``echo`` put at the end; a model would take it for part of the text."""
    return text.removesuffix("\n").removesuffix("\r")


def _checked(text: str) -> str:
    if not text:
        raise ConfigError("the prompt is empty: give at least one character")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"the prompt is not valid UTF-8 at character {error.start}: check the terminal") from error
    return text


def read_prompt_lines(file: Path) -> list[str]:
    """Return the prompts of a file, one a line, empty lines left out.

    A line ends where an editor ends one; what else Unicode counts as an end, such as U+2028, is text.

    Raises:
        ConfigError: it cannot be read, is not UTF-8 or holds no prompt.
    """
    lines = [line for line in _LINE_END.split(decode_prompt(_read(file), where=str(file))) if line.strip()]
    if not lines:
        raise ConfigError(f"the prompt file {file} is empty: write one prompt a line")
    return lines
