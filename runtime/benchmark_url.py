"""The URL of a server to compare with: checked before anything is sent, and never printed with what is secret in it."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from edgeprec.errors import ConfigError

__all__ = ["server_url"]

_SHOWN = 80
_SECRETS = re.compile(r"(?<=//)[^/?#]*@|(?<=[?#]).+", re.DOTALL)


def server_url(text: str) -> SplitResult:
    """Return the parts of a server's base URL, whose path ends in ``/v1``; ``text`` may leave that out.

    Raises:
        ConfigError: it is no URL of a server, or carries a user name, a password or a query.
    """
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise _refusal(text)
    try:
        parts = urlsplit(text.rstrip("/"))
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")
    except ValueError as error:  # brackets, a port that is none, a label too long
        raise _refusal(text) from error
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            f"--against is {_told(text)}, and results carry the URL: leave the user name and the password out, and put "
            "an API key into a file for --against-key-file"
        )
    if parts.scheme not in ("http", "https") or not host or port == 0 or parts.query or parts.fragment:
        raise _refusal(text)
    return parts._replace(path=parts.path if parts.path.endswith("/v1") else f"{parts.path}/v1")


def _refusal(text: str) -> ConfigError:
    return ConfigError(f"--against is {_told(text)}, expected a URL such as http://127.0.0.1:8000/v1")


def _told(text: str) -> str:
    """Return a URL as it may be printed."""
    told = _SECRETS.sub("***", text)
    return repr(told if len(told) <= _SHOWN else f"{told[:_SHOWN]}\u2026").encode("ascii", "backslashreplace").decode()
