"""Item banks of small benchmarks: made from the scores of invented models, whose answers depend on skill alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from probing import make_items

from viva.data.bank_file import BankFile, Matrix, fit_bank_file, write_bank_file
from viva.data.dataset import open_dataset


def make_bank(folder: Path, *, items: int = 80, models: int = 60, levels: int = 2, seed: int = 3) -> tuple[Path, Path]:
    """A dataset of so many items and its bank, as two files; scores have so many levels."""
    source = make_items(folder / "quiz.jsonl", items, "tides rust")
    dataset = open_dataset(str(source))
    generator = np.random.default_rng(seed)
    skills = generator.uniform(0.05, 0.95, (models, 1))
    drawn = generator.random((models, items, levels - 1)) < skills[:, :, None]
    names = [f"lab{number % 12}/model{number}" for number in range(models)]
    ids = [item.id for item in dataset]
    matrix = Matrix(drawn.mean(axis=2), names, ids, dataset.digest, dataset.name)
    file = fit_bank_file(matrix, ["invented"])
    return source, write(folder / "quiz.bank.json", file)


def write(path: Path, file: BankFile) -> Path:
    """Write a bank, and return its path."""
    write_bank_file(path, file)
    return path
