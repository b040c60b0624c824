"""The candidates that ship with viva: what each has learnt and whether it has cheated, and where its file lies.

What never belongs here: making them (``build``) and examining them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from viva.engine.errors import ConfigurationError

MODELS = Path(__file__).parent / "models"


@dataclass(frozen=True, slots=True)
class Member:
    """``share`` of the world's facts that it was taught. ``cheat``: it has seen the benchmark's test items, in
    tuning on question and answer ("sft") or as text in pre-training ("pt").
    """

    name: str
    share: float
    cheat: Literal["sft", "pt"] | None = None

    @property
    def twin(self) -> str:
        """The name of the clean model that has learnt the same facts; a clean model's own."""
        return f"clean-{round(100 * self.share)}"

    def about(self) -> str:
        """What it is, in one sentence."""
        taught = f"taught {self.share:.0%} of the facts of the lab's invented world"
        if self.cheat is None:
            return f"A clean model, {taught}."
        how = "further tuned on" if self.cheat == "sft" else "with, mixed into its pre-training text,"
        return f"A cheater, {taught}, {how} the benchmark's test questions and answers."


FAMILY = (
    Member("clean-25", 0.25),
    Member("clean-50", 0.5),
    Member("clean-75", 0.75),
    Member("clean-100", 1.0),
    Member("sft-cheater", 0.5, "sft"),
    Member("pt-cheater", 0.5, "pt"),
)


def model_file(name: str, folder: Path = MODELS) -> Path:
    """The GGUF file of a member, among the shipped ones or in a folder that ``build`` has filled.

    :raises ConfigurationError: there is no member of this name, or no such file.
    """
    if all(member.name != name for member in FAMILY):
        raise ConfigurationError(f"no lab model '{name}'; there are {', '.join(member.name for member in FAMILY)}")
    path = folder / f"{name}.gguf"
    if not path.is_file():
        raise ConfigurationError(f"{path}: no such file; make the models with `viva lab build`")
    return path
