from typing import Literal

from pydantic import BaseModel

import viva


class Verdict(BaseModel):
    reason: str
    winner: Literal["pro", "con", "tie"]


@viva.scenario(compare=("pro", "con"), meet="pairs", judge="jury")
async def debate(conversation: viva.Conversation, motion: str) -> str | None:
    """Every two models debate each motion, both ways round, and a jury says who won."""
    sides = [viva.Agent(conversation, side, f"You argue {side} this motion: {motion}") for side in ("pro", "con")]
    speeches = ["You begin. Two sentences at a time."]
    for side in sides * 2:
        speeches.append((await side.ask(speeches[-1])).text)
    jury = viva.Agent(conversation, "jury", f"Who argues better? {motion}")
    verdict = await jury.ask_for(Verdict, repr(speeches[1:]))
    return verdict and verdict.winner  # None is unscored


if __name__ == "__main__":
    models = {"candidate": ["simulated:a", "simulated:b", "simulated:c"], "jury": "simulated:jury"}
    run = viva.run_sync(debate, tasks=["Tides are lunar.", "Rust is fire."], models=models, out="runs/debate")
    for name, result in run.report()["standings"]["candidate"].items():
        print(name, "won", result["won"]["mean"], "of", result["conversations"])
