"""Correct the figures of your own judge with human grades for some of the answers.

    python examples/certified_judge.py

The judge is too kind. Its mean over all answers is precise and wrong; the mean of the human grades is right and
imprecise. The certified figure combines both: it is right, with a narrower interval than the human grades alone.
"""

import math
import random
import zlib

from pydantic import BaseModel

import viva
from viva.scoring.certificate import GradeRange, certify
from viva.scoring.prediction_powered import GradedSample


def merit(text: str) -> float:
    """Return how good an answer is, from 2 to 8; it stands in for human grades in this example."""
    return 2 + 6 * random.Random(zlib.crc32(text.encode())).random()


class Writer(viva.Backend):
    """A placeholder for a real model: models={"writer": "openai:…"}."""

    label = "writer"

    async def generate(self, request: viva.Request) -> viva.Completion:
        return viva.Completion(f"About {request.messages[-1].content} there is this to say.")


class KindJudge(viva.Backend):
    """A program as judge: it sees the merit of a text with some noise, and adds two points."""

    label = "kind"

    async def generate(self, request: viva.Request) -> viva.Completion:
        text = request.messages[-1].content
        noise = random.Random(request.seed).gauss(0, 0.5)
        return viva.Completion(Grade(points=min(10.0, merit(text) + 2 + noise)).model_dump_json())


class Grade(BaseModel):
    points: float


@viva.scenario(compare="writer", judge="grader")
async def essays(conversation: viva.Conversation, topic: str) -> dict[str, float | str | None]:
    """Explain a topic; a judge grades the text from 0 to 10."""
    text = (await viva.Agent(conversation, "writer").ask(topic)).text
    grade = await viva.Agent(conversation, "grader").ask_for(Grade, text)
    return {"score": None if grade is None else grade.points, "merit": merit(text)}


def main() -> None:
    topics = [f"topic {number}" for number in range(120)]
    run = viva.run_sync(essays, tasks=topics, models={"writer": Writer(), "grader": KindJudge()}, out="runs/certified")
    values = [result.value for result in run.results() if result.error is None]
    # People graded every fourth answer; nan stands for "not graded".
    grades = [value["merit"] if number % 4 == 0 else math.nan for number, value in enumerate(values)]
    sample = GradedSample.from_arrays([value["score"] for value in values], grades)
    figure = certify({"writer": sample}, GradeRange(0, 10)).candidates["writer"]
    truth = sum(value["merit"] for value in values) / len(values)
    print(f"what people would say of all {len(values)} answers: {truth:.2f}")
    for name, estimate in [("judge", figure.judged), ("people", figure.labels_alone), ("certified", figure.corrected)]:
        if estimate is not None:
            print(f"{name:<10} {estimate.value:.2f} ({estimate.low:.2f} to {estimate.high:.2f})")


if __name__ == "__main__":
    main()
