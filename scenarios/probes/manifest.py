"""What a manifest of probes holds beside what every manifest has.

What never belongs here: the fields of every run (``orchestration.manifests``).
"""

from __future__ import annotations

from viva.data.records import DatasetRecord, ManifestPart


class ProbeManifest(ManifestPart):
    """The manifest of a run of probes: the second set, and where examples were drawn from, if there are such."""

    dataset: DatasetRecord
    against: DatasetRecord | None
    examples: DatasetRecord | None
