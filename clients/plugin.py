"""A plugin of pytest, `-p clients.plugin`, that runs a codebase's own tests with this library in it."""

from __future__ import annotations

import importlib
import os


def pytest_configure() -> None:
    """Replaces for the whole run what the client in POSENC_CLIENT replaces."""
    if name := os.environ.get("POSENC_CLIENT"):
        for each in importlib.import_module(f"clients.{name}").REPLACED:
            setattr(each.owner, each.name, each.ours)
