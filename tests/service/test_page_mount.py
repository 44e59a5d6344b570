"""The folder of the web page at ``/``: served to everybody, with headers that let it use nothing from outside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MakeClient = Callable[..., Any]


@pytest.fixture
def web_folder(tmp_path: Path) -> Path:
    """Return a folder with a page, beside a file that is nobody's business."""
    (tmp_path / "secret.txt").write_text("secret")
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "index.html").write_text("<!doctype html><title>page</title>")
    (folder / "page.js").write_text("export {};")
    return folder


def test_the_page_is_served(make_client: MakeClient, web_folder: Path) -> None:
    """The page at the root, its parts by their names, as what they are."""
    client = make_client(web_folder=web_folder)
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "javascript" in client.get("/page.js").headers["content-type"]


def test_the_page_needs_no_key_and_the_routes_stay(make_client: MakeClient, web_folder: Path, tmp_path: Path) -> None:
    """A visitor types the key into the page."""
    keys = tmp_path / "keys"
    keys.write_text("0123456789abcdef\n")
    keys.chmod(0o600)
    client = make_client(web_folder=web_folder, api_key_file=keys)
    assert client.get("/").status_code == 200
    assert client.get("/ready").json() == {"status": "ready"}
    assert client.get("/v1/models").status_code == 401


@pytest.mark.parametrize(
    "path", ["/none.js", "/../secret.txt", "/%2e%2e/secret.txt", "/..%2fsecret.txt", "//etc/passwd"]
)
def test_nothing_outside_the_folder_is_served(make_client: MakeClient, web_folder: Path, path: str) -> None:
    """A missing file is a JSON error like any other, and shows no folder."""
    answer = make_client(web_folder=web_folder).get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found_error"
    assert str(web_folder) not in answer.text


def test_only_reading_is_possible(make_client: MakeClient, web_folder: Path) -> None:
    """Nobody writes a page."""
    assert make_client(web_folder=web_folder).post("/page.js", content=b"x").status_code == 405
