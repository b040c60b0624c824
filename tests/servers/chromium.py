"""Finds a Chromium for tests of pages, or gets one: ``python tests/servers/chromium.py`` (``make test`` does).

Looked for: ``VIVA_BROWSER``, the usual names on the path, Playwright's cache, and a folder of our own. Where there is
none, Debian's package and what it needs are downloaded by apt-get and unpacked into that folder: no right is needed for
it, and nothing is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_PLAYWRIGHTS = ("headless_shell", "chrome-headless-shell", "chrome")
_PACKAGES = ("chromium-headless-shell", "fonts-dejavu-core")
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
_OWN = _CACHE / "viva" / "browser"
_STARTER = _OWN / "start"
_SECONDS = 90  # for one command of apt: a network that leads nowhere holds the tests back no longer
MISSING = "no Chromium here; `make test` gets one on Debian; elsewhere install Chromium, or name one in VIVA_BROWSER"


def find_browser() -> str | None:
    """The path of a Chromium, None where there is none."""
    if named := os.environ.get("VIVA_BROWSER"):
        return named
    if found := next((path for name in _NAMES if (path := shutil.which(name))), None):
        return found
    playwright = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or _CACHE / "ms-playwright")
    there = [one for one in sorted(playwright.glob("chromium*/chrome-*/*")) if one.name in _PLAYWRIGHTS]
    return next((str(one) for one in [*there, _STARTER] if os.access(one, os.X_OK)), None)


def get_browser() -> str:
    """The path of a Chromium, downloaded where there was none.

    :raises RuntimeError: none can be had; the message says what is missing.
    """
    found = find_browser()
    if found is not None:
        return found
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise RuntimeError(MISSING)
    try:
        _unpack()
    except (OSError, subprocess.SubprocessError) as error:
        lines = str(getattr(error, "stderr", "") or error).strip().splitlines()
        told = lines[-1] if lines else type(error).__name__
        raise RuntimeError(f"{MISSING} ({' '.join(_PACKAGES)} cannot be downloaded: {told})") from None
    return str(_STARTER)


def _unpack() -> None:
    """Download the packages and what they need besides what is installed, and unpack it all into our own folder."""
    lists, packages, root = _OWN / "lists", _OWN / "packages", _OWN / "root"
    for folder in (lists / "partial", packages / "partial", root):
        folder.mkdir(parents=True, exist_ok=True)
    options = [f"Dir::State::lists={lists}", f"Dir::Cache={packages}", "Debug::NoLocking=1", "APT::Sandbox::User="]
    options += ["Acquire::http::Timeout=10", "Acquire::https::Timeout=10", "Acquire::Retries=0"]
    apt = ["apt-get", *(part for option in options for part in ("-o", option))]
    _run([*apt, "update"])
    planned = _run([*apt, "install", "--simulate", "--no-install-recommends", *_PACKAGES])
    names = [line.split()[1] for line in planned.splitlines() if line.startswith("Inst ")]
    _run([*apt, "download", *names], folder=packages)
    for package in sorted(packages.glob("*.deb")):
        _run(["dpkg-deb", "--extract", str(package), str(root)])
        package.unlink()
    libraries = sorted({str(one.parent) for one in (*root.glob("usr/lib/**/*.so*"), *root.glob("lib/**/*.so*"))})
    lines = ["#!/bin/sh", f"export LD_LIBRARY_PATH='{':'.join(libraries)}'"]
    if not Path("/etc/fonts/fonts.conf").exists():
        lines.append(f"export FONTCONFIG_SYSROOT='{root}'")
    program = root / "usr/lib/chromium/chromium-headless-shell"
    made = _STARTER.with_suffix(".part")
    made.write_text("\n".join([*lines, f"exec '{program}' \"$@\"", ""]))
    made.chmod(0o755)
    _run([str(made), "--version"])
    made.rename(_STARTER)


def _run(command: list[str], *, folder: Path | None = None) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=True)
    return done.stdout


if __name__ == "__main__":
    try:
        print(get_browser())
    except RuntimeError as error:
        sys.exit(f"viva: {error}")
