"""Descriptions of model name options, for `viva list KIND` and the reference; the texts are in `options.yaml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml

Options = dict[str, tuple[str, str]]  # by name: default and meaning

_ENDPOINTS = ("openai", "anthropic", "gemini")
_SHARED = ("every", "endpoint")


def described_kinds() -> list[str]:
    return [kind for kind in _read_options() if kind not in _SHARED]


def describe_options(kind: str) -> Options:
    """Return all options of a kind of model, its own first."""
    options = _read_options()
    shared = [*(["endpoint"] if kind in _ENDPOINTS else []), "every"]
    return options[kind] | {
        name: text for group in shared for name, text in options[group].items() if name not in options[kind]
    }


@cache
def _read_options() -> dict[str, Options]:
    text = Path(__file__).with_name("options.yaml").read_text(encoding="utf-8")
    return {
        kind: {name: (str(default), meaning) for name, (default, meaning) in options.items()}
        for kind, options in yaml.safe_load(text).items()
    }
