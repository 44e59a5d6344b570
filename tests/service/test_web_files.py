"""The files of the web page, without a browser: they are served, hold to themselves, and cannot run foreign code."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from edgeprec.runtime.service.app import WEB_FOLDER

FILES = sorted(path.name for path in WEB_FOLDER.iterdir())


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_served_without_a_key(make_client: Callable[..., Any], name: str) -> None:
    """Each file comes with its own bytes, the right type, and the policy that keeps strangers out."""
    client = make_client(web_folder=WEB_FOLDER)
    answer = client.get(f"/{name}")
    assert answer.status_code == 200
    assert answer.content == (WEB_FOLDER / name).read_bytes()
    kinds = {"html": "text/html", "css": "text/css", "js": "javascript", "svg": "image/svg+xml"}
    assert kinds[name.rsplit(".", 1)[1]] in answer.headers["content-type"]
    assert "default-src 'self'" in answer.headers["content-security-policy"]


def test_the_root_is_the_page(make_client: Callable[..., Any]) -> None:
    """A browser that is sent to the server's address sees the page."""
    assert make_client(web_folder=WEB_FOLDER).get("/").content == (WEB_FOLDER / "index.html").read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_nothing_outside_is_named(name: str) -> None:
    """No file names another host; the name of SVG's namespace is no address."""
    text = (WEB_FOLDER / name).read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"(?:https?:)?//[\w.-]+\.\w|@import|url\(", text)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith((".js", ".html"))])
def test_text_never_becomes_markup_or_code(name: str) -> None:
    """No way to turn text into elements or code is used, and the page has no inline script or style."""
    text = (WEB_FOLDER / name).read_text()
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function"
    assert re.findall(ways + r"|\bstyle=|\son\w+=\"|<style|<script>", text) == []


def test_every_module_and_id_exists() -> None:
    """An import of a file that is not there, or a selector nothing answers to, would break the page silently."""
    ids = set(re.findall(r'\bid="([\w-]+)"', (WEB_FOLDER / "index.html").read_text()))
    for name in FILES:
        text = (WEB_FOLDER / name).read_text()
        if not name.endswith(".js"):
            continue
        assert set(re.findall(r'from "\./([\w.]+)"', text)) <= set(FILES)
        assert set(re.findall(r'(?:find|querySelector)\("#([\w-]+)"\)', text)) <= ids
