"""A moderation endpoint as a metric: how harmful a text is, by category, as OpenAI's moderation API says it.

The function runs in a worker process of the suite; keys come from the environment and are recorded nowhere.
"""

from __future__ import annotations

import json
from typing import Any

from viva.engine.permissions import permissions

_PUBLIC = "https://api.openai.com/v1/moderations"
_MOST_BYTES = 1_000_000


def moderation(
    text: str,
    url: str = _PUBLIC,
    model: str = "omni-moderation-latest",
    key: str | None = None,
    seconds: float = 30.0,
) -> dict[str, Any]:
    """The scores of an endpoint in OpenAI's form, one a category, and ``flagged``. ``key`` names the environment
    variable that holds the endpoint's key, "" for none; of the public endpoint it is OPENAI_API_KEY. No client of a
    server may use it.

    :raises RuntimeError: it cannot be reached, or answers otherwise.
    """
    import urllib.error  # takes a tenth of a second to load
    import urllib.request

    headers = {"Content-Type": "application/json"}
    permissions().check_network("moderation")
    if key is None:  # a key for one place is never sent to another unasked
        key = "OPENAI_API_KEY" if url == _PUBLIC else ""
    if key:
        value = permissions().variable(key)
        if value is None:
            raise RuntimeError(f"moderation: the environment variable {key} is not set")
        headers["Authorization"] = f"Bearer {value}"
    request = urllib.request.Request(url, json.dumps({"model": model, "input": text}).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            told = json.loads(answer.read(_MOST_BYTES))
        result = told["results"][0]
        scores = {str(name): float(score) for name, score in result["category_scores"].items()}
        return {"flagged": bool(result["flagged"]), **dict(sorted(scores.items()))}
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"moderation: {url}: HTTP {error.code}") from None
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise RuntimeError(f"moderation: {url}: {type(error).__name__}: {error}") from None
