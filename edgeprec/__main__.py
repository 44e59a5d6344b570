"""``python -m edgeprec`` is the command line."""

from __future__ import annotations

from edgeprec.cli import main

main()
