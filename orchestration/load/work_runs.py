"""The requests that the judge of a recorded run was sent, message by message, with its sampling.

Each conversation is held again against its record (``orchestration.transcripts``), so prefixes are shared as they were.
Requests about one task are one item, whichever candidate's conversation they are of. What never belongs here: anything
about one system.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from viva.engine.errors import ConfigurationError
from viva.engine.folder import RunFolder
from viva.engine.history import History
from viva.engine.journal import role_in_branch
from viva.engine.messages import Message
from viva.engine.rerun import Exchange
from viva.scenarios.contract import Role, judge_role, many_role
from viva.scenarios.models import label_of
from viva.scenarios.registry import AnyScenario

from ..launch import recorded_settings
from ..sweep.results import cells_of, is_sweep
from ..transcripts import Transcripts
from .judging import reader_for
from .orders import with_orders
from .records import LoadRequest

Found = tuple[list[LoadRequest], list[str]]


def recorded_requests(folder: Path, role: str | None = None) -> Found:
    """The requests of all conversations of a run, or of all runs of a sweep; and what a person should know of them.

    :raises ConfigurationError: the folder is neither, there is no such role, or nothing is known of what it was sent.
    """
    if not is_sweep(folder):
        return asyncio.run(_of_run(RunFolder.open(folder), "", role))
    requests: list[LoadRequest] = []
    notes: dict[str, None] = {}
    for cell in cells_of(folder):
        if cell.folder is not None:
            found, told = asyncio.run(_of_run(cell.folder, f"{cell.name}/", role))
            requests += found
            notes |= dict.fromkeys(told)
    return requests, list(notes)


async def _of_run(folder: RunFolder, before: str, wanted: str | None) -> Found:
    which, settings = recorded_settings(folder)
    role = judging_role(which.roles_of(settings), wanted, str(folder.path))
    labels = list(folder.manifest["models"][many_role(which.roles_of(settings)).name])
    dataset = str(folder.manifest.get("dataset", {}).get("name", ""))
    requests: list[LoadRequest] = []
    unknown = 0
    transcripts = Transcripts(folder)
    with History(folder.journal) as history:
        for number in history.numbers():
            key, record = history.started(number) or (str(number), None)
            held: list[LoadRequest] = []
            for one in (await transcripts.rerun(history, number)).lines:
                if not isinstance(one, Exchange) or one.role != role.name:
                    continue
                if one.messages is None or one.sampling is None:
                    unknown += 1
                    continue
                held.append(_request(f"{before}{key}", one, f"{dataset}/{_task(which, key, record, labels)}"))
            requests += with_orders(held)
    if not requests:
        why = f"what {unknown} of its requests were is not known" if unknown else "it was asked nothing"
        raise ConfigurationError(f"{folder.path}: no request of the role '{role.name}' can be rebuilt: {why}")
    told = f"{folder.path}: what {unknown} requests of the {role.name} were is not known; they are left out"
    return requests, [told] if unknown else []


def _task(which: AnyScenario, key: str, record: Any, labels: list[str]) -> str:
    """The id of a conversation's task, which is the same for all candidates and repeats."""
    try:
        return str(which.task(record).id)
    except Exception:  # of a record that is damaged, or of a system that reads its tasks otherwise today
        return key.removeprefix(f"{label_of(key, labels)}/")


def judging_role(roles: tuple[Role, ...], wanted: str | None, where: str) -> Role:
    """The role whose requests are meant: the one that is named, the judge, or the role whose models are compared.

    :raises ConfigurationError: there is no role of that name.
    """
    if wanted is None:
        return judge_role(roles) or many_role(roles)
    found = next((role for role in roles if role.name == wanted), None)
    if found is None:
        raise ConfigurationError(f"{where}: no role '{wanted}'; there are: {', '.join(role.name for role in roles)}")
    return found


def _request(key: str, one: Exchange, item: str) -> LoadRequest:
    assert one.messages is not None
    assert one.sampling is not None
    # Tokens of the recorded model's own replies mean nothing to another one.
    messages = tuple(
        Message(told.role, told.content, None, told.calls, told.call_id, told.name) for told in one.messages
    )
    return LoadRequest(
        f"{key}:{role_in_branch(one.branch, one.role)}{one.ordinal}",
        messages,
        one.sampling,
        affinity=key,
        reader=reader_for(one.sampling, one.completion.text if one.completion is not None else ""),
        tools=one.tools,
        hint=one.hint,
        item=item,
        role=one.role,
    )
