"""What a manifest of interviews holds beside what every manifest has.

What never belongs here: the fields of every run (``orchestration.manifests``).
"""

from __future__ import annotations

from viva.data.records import DatasetRecord, ManifestPart


class KievalManifest(ManifestPart):
    """The manifest of a run of interviews; ``examples`` where five solved ones stand before the first question."""

    dataset: DatasetRecord
    examples: DatasetRecord | None = None
