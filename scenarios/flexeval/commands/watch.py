"""Temporary."""

from pathlib import Path


def watch(file: Path) -> None:
    """Score new lines of a growing log."""
