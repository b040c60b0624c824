"""Run inside a program: watch events, end single conversations, and end the run when enough is known.

python examples/early_stop.py
"""

import asyncio

import viva


@viva.scenario(compare="pupil", one="tutor")
async def lesson(conversation: viva.Conversation, topic: str) -> float:
    """Answer four questions of a tutor; the score is the share of answers with a reason."""
    tutor = viva.Agent(conversation, "tutor", f"You teach {topic}. Ask one question at a time.")
    pupil = viva.Agent(conversation, "pupil")
    reply, reasons = "Begin.", 0
    for _ in range(4):
        reply = (await pupil.ask((await tutor.ask(reply)).text)).text
        reasons += "follows from" in reply
    return reasons / 4


async def main() -> None:
    models = {"pupil": "simulated:pupil", "tutor": "simulated:tutor"}
    tasks = [f"topic {number}" for number in range(2_000)]
    async with viva.start(lesson, tasks=tasks, models=models, concurrency=20, out="runs/early") as run:
        async for event in run.events():
            # Enough is known about this conversation: it ends at its next call, without a score.
            if isinstance(event, viva.CallFinished) and event.conversation == "pupil/topic 3":
                run.stop(event.conversation, "this topic is being rewritten")
            if isinstance(event, viva.ConversationFinished):
                score = run.report_so_far()["candidates"]["pupil"]["measures"].get("score")
                if score and score["n"] >= 100 and score["high"] - score["low"] < 0.08:
                    # The interval is narrow enough. Pending calls are answered and recorded; no new ones start.
                    run.interrupt()
                    break
    ended = run.ended()
    report = ended.report()["candidates"]["pupil"]
    print(f"{ended.outcome.how if ended.outcome else '?'}: {report['conversations']} of {len(tasks)} conversations")
    print("score", {name: report["measures"]["score"][name] for name in ("mean", "low", "high")})
    print("stopped", report["stopped"])


if __name__ == "__main__":
    asyncio.run(main())
