"""A scenario from one coroutine: a debater defends a claim against an opponent, and a jury says how well.

python examples/debate.py                    # with simulated models
viva run examples/debate.py --tasks claims.jsonl --debater MODEL --opponent MODEL --jury MODEL
"""

from pydantic import BaseModel, Field

import viva


class Debate(viva.RunSettings):
    """Settings of a scenario become options of the command and arguments in Python."""

    exchanges: int = Field(default=2, ge=1, description="How often each side speaks.")


class Verdict(BaseModel):
    reason: str
    convinced: int = Field(ge=0, le=100)


@viva.scenario(many="debater", one="opponent", judge="jury", settings=Debate)
async def debate(conversation: viva.Conversation, claim: str, settings: Debate) -> dict[str, float | None]:
    """A debater defends a claim, an opponent attacks it, a jury decides."""
    debater = viva.Agent(conversation, "debater", f"You defend this claim in two sentences at a time: {claim}")
    opponent = viva.Agent(conversation, "opponent", f"You attack this claim with one question at a time: {claim}")
    jury = viva.Agent(conversation, "jury", "You read debates. How far, from 0 to 100, did the defence convince you?")
    said = ["Defend your claim."]
    for _ in range(settings.exchanges):
        said.append((await debater.ask(said[-1])).text)
        said.append((await opponent.ask(said[-1])).text)
    verdict = await jury.ask_for(Verdict, "\n\n".join(said[1:]))
    # None is unscored: a verdict that cannot be read is no low score.
    return {"score": None if verdict is None else float(verdict.convinced), "words": sum(len(s.split()) for s in said)}


if __name__ == "__main__":
    run = viva.run_sync(
        debate,
        tasks=["Tides come from the Moon.", "Rust is a fire.", "Salt keeps food."],
        models={
            "debater": ["simulated:a", "simulated:b"],
            "opponent": "simulated:opponent",
            "jury": "simulated:jury",
        },
        exchanges=3,
        out="runs/debate",
    )
    for title, header, rows in run.tables()[:1]:
        print(title)
        for row in [header, *rows]:
            print("  ".join(f"{cell:<16}" for cell in row))
