"""Who may use the server: keys, hosts, origins, and what a stranger learns."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeprec.errors import ConfigError
from edgeprec.runtime.service.api_key import KeyFile
from edgeprec.runtime.service.problem import without_paths
from edgeprec.runtime.service.settings import ServiceSettings, is_loopback

MakeClient = Callable[..., Any]
KEY, OTHER_KEY = "0123456789abcdef", "fedcba9876543210"


def write_keys(path: Path, text: str = f"# ours\n{KEY}\n\n  {OTHER_KEY}\n", mode: int = 0o600) -> Path:
    """Write a key file."""
    path.write_text(text)
    path.chmod(mode)
    return path


def bearer(key: str) -> dict[str, str]:
    """Return the header that shows a key."""
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("key", [KEY, OTHER_KEY])
@pytest.mark.parametrize("path", ["/v1/models", "/metrics"])
def test_a_key_of_the_file_opens(make_client: MakeClient, tmp_path: Path, key: str, path: str) -> None:
    """Each of them, wherever a key is needed."""
    client = make_client(api_key_file=write_keys(tmp_path / "keys"))
    assert client.get(path, headers=bearer(key)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer(""),
        bearer(KEY[:-1]),
        bearer(KEY + "0"),
        bearer("# ours"),
        {"authorization": KEY},
        {"authorization": f"Basic {KEY}"},
        {"authorization": b"Bearer \xff\xfe"},
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions", "/v1/nothing", "/metrics"])
def test_everything_else_is_401(make_client: MakeClient, tmp_path: Path, headers: Any, path: str) -> None:
    """Also for paths that do not exist; the answer says how a key is shown, not what it is."""
    client = make_client(api_key_file=write_keys(tmp_path / "keys"))
    answer = client.get(path, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["type"] == "authentication_error"
    assert KEY not in answer.text


@pytest.mark.parametrize("path", ["/health", "/ready", "/openapi.json"])
def test_probes_need_no_key(make_client: MakeClient, tmp_path: Path, path: str) -> None:
    """A service manager has none."""
    assert make_client(api_key_file=write_keys(tmp_path / "keys")).get(path).status_code == 200


def test_without_a_file_any_key_is_taken(make_client: MakeClient) -> None:
    """OpenAI's clients always send one."""
    client = make_client()
    assert client.get("/v1/models", headers=bearer("whatever")).status_code == 200
    assert client.get("/v1/models").status_code == 200


@pytest.mark.parametrize("mode", [0o604, 0o606, 0o620, 0o644, 0o777])
def test_an_open_key_file_is_refused(tmp_path: Path, mode: int) -> None:
    """A key that others can read is none."""
    with pytest.raises(ConfigError, match=f"permissions {mode:04o}, which let others in: chmod 600"):
        KeyFile.read(write_keys(tmp_path / "keys", mode=mode))


@pytest.mark.parametrize("mode", [0o400, 0o440, 0o600, 0o640])
def test_a_closed_key_file_is_read(tmp_path: Path, mode: int) -> None:
    """The group may read it: service managers hand credentials over like that."""
    assert KeyFile.read(write_keys(tmp_path / "keys", mode=mode)).accept(KEY)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no key"),
        ("# only a comment\n\n", "holds no key"),
        ("short\n", "shorter than 16 characters"),
        (f"{KEY}\nshort\n", "shorter than 16 characters"),
        ("schlüssel-schlüssel\n", "not plain ASCII"),
    ],
)
def test_a_key_file_without_good_keys_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """A server that nobody or everybody can open is a mistake; the key is not in the message."""
    with pytest.raises(ConfigError, match=message) as raised:
        KeyFile.read(write_keys(tmp_path / "keys", text))
    assert KEY not in str(raised.value)


def test_a_key_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Missing, or no text."""
    with pytest.raises(ConfigError, match=r"keys cannot be read: No such file"):
        KeyFile.read(tmp_path / "keys")
    (tmp_path / "keys").write_bytes(b"\xff" * 20)
    (tmp_path / "keys").chmod(stat.S_IRUSR)
    with pytest.raises(ConfigError, match="not UTF-8 at byte 0"):
        KeyFile.read(tmp_path / "keys")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8080", "localhost:1", "[::1]:8080", "[::1]"])
def test_local_names_are_answered(make_client: MakeClient, host: str) -> None:
    """However this machine calls itself."""
    assert make_client().get("/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "[fe80::1]", ""])
def test_other_names_are_refused_while_it_stands_open(make_client: MakeClient, host: str) -> None:
    """A web page whose name was pointed at this machine must not reach the server."""
    answer = make_client().get("/v1/models", headers={"host": host})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "wrong_host")


def test_with_a_key_any_name_is_answered(make_client: MakeClient, tmp_path: Path) -> None:
    """Behind a proxy the name is the proxy's; the page that was pointed here has no key."""
    client = make_client(api_key_file=write_keys(tmp_path / "keys"))
    assert client.get("/v1/models", headers={"host": "llm.example", **bearer(KEY)}).status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1.evil.example", ""])
def test_pages_of_other_origins_are_refused(make_client: MakeClient, origin: str) -> None:
    """Before anything is generated for them."""
    client = make_client()
    passes = len(client.served.engine.passes)
    answer = client.post("/v1/completions", json={"prompt": "abc"}, headers={"origin": origin})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "wrong_origin")
    assert "access-control-allow-origin" not in answer.headers
    assert len(client.served.engine.passes) == passes


def test_the_servers_own_page_is_answered(make_client: MakeClient) -> None:
    """A browser sends the origin with every POST."""
    client = make_client()
    answer = client.post("/v1/completions", json={"prompt": "abc"}, headers={"origin": "http://127.0.0.1"})
    assert answer.status_code == 200


def test_an_allowed_origin_may_call(make_client: MakeClient) -> None:
    """With the headers a browser wants, before and with the answer, and nobody else."""
    client = make_client(cors_origins=("https://app.example",))
    preflight = {"origin": "https://app.example", "access-control-request-method": "POST"}
    asked = client.options(
        "/v1/completions", headers=preflight | {"access-control-request-headers": "authorization,content-type"}
    )
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == "https://app.example"
    answer = client.post("/v1/completions", json={"prompt": "abc"}, headers={"origin": "https://app.example"})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    other = client.post("/v1/completions", json={"prompt": "abc"}, headers={"origin": "https://evil.example"})
    assert other.status_code == 403


def test_without_cors_a_preflight_is_refused(make_client: MakeClient) -> None:
    """No header invites a page in."""
    preflight = {"origin": "https://app.example", "access-control-request-method": "POST"}
    answer = make_client().options("/v1/completions", headers=preflight)
    assert answer.status_code == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_every_answer_carries_its_id_and_the_security_headers(make_client: MakeClient) -> None:
    """Refusals and missing paths too."""
    client = make_client()
    answers = [client.get("/v1/models"), client.get("/nothing"), client.get("/health", headers={"host": "x"})]
    assert len({answer.headers["x-request-id"] for answer in answers}) == 3
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert "server" not in answer.headers


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no rails under /sys/bus/i2c/devices; bye", "no rails under [path]; bye"),
        ("(/home/ann/pair.edgeprec/bundle.json)", "([path])"),
        ("'/etc/keys' is open", "'[path]' is open"),
        ("see /v1/models and /openapi.json", "see /v1/models and /openapi.json"),
        ("tokens/s, 3/4, http://a.example/b", "tokens/s, 3/4, http://a.example/b"),
    ],
)
def test_paths_of_the_machine_are_hidden(text: str, shown: str) -> None:
    """Messages of sensors and loaders name files; clients must not learn where things lie."""
    assert without_paths(text) == shown


def test_loopback_is_recognised() -> None:
    """Names that may resolve to anything are not local."""
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost")] == [True] * 3
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.example", "")] == [False] * 5


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_key_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """The reason is the system's own."""
    with pytest.raises(ConfigError, match="Permission denied"):
        KeyFile.read(write_keys(tmp_path / "keys", mode=0))


def test_an_open_host_without_a_key_is_refused() -> None:
    """Settings alone say so, whoever makes them."""
    with pytest.raises(ConfigError, match="there is no API key"):
        ServiceSettings(model_name="m", host="0.0.0.0")
