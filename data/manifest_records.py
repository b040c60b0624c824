"""Records of a run's data in its manifest: prompt pack, dataset, number of chosen items."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ManifestPart(BaseModel):
    """A part of a manifest: what it does not name may stand there, too."""

    model_config = ConfigDict(strict=True, extra="allow", defer_build=True)


class PackRecord(ManifestPart):
    """Which prompt pack a run has."""

    name: str
    version: str
    digest: str


class DataRecord(ManifestPart):
    """Which data a run has. ``chosen`` counts what the run takes of it."""

    name: str
    digest: str
    chosen: int = Field(ge=0)


class DatasetRecord(DataRecord):
    """A dataset of multiple-choice items; ``skipped`` counts lines that were none."""

    items: int = Field(ge=0)
    skipped: int = Field(ge=0)
