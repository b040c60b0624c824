"""A moderation endpoint as a metric: how harmful a text is, by category, as OpenAI's moderation API says it.

The function runs in a worker process of the suite; keys come from the environment and are recorded nowhere.
"""

from __future__ import annotations

import json
import os
from typing import Any

_PUBLIC = "https://api.openai.com/v1/moderations"
_MOST_BYTES = 1_000_000


def moderation(
    text: str,
    url: str = _PUBLIC,
    model: str = "omni-moderation-latest",
    key: str = "OPENAI_API_KEY",
    seconds: float = 30.0,
) -> dict[str, Any]:
    """The scores of an endpoint in OpenAI's form, one a category, and ``flagged``. ``key`` names the environment
    variable that holds the endpoint's key, "" for none.

    :raises RuntimeError: it cannot be reached, or answers otherwise.
    """
    import urllib.error  # takes a tenth of a second to load
    import urllib.request

    headers = {"Content-Type": "application/json"}
    if key:
        if key not in os.environ:
            raise RuntimeError(f"moderation: the environment variable {key} is not set")
        headers["Authorization"] = f"Bearer {os.environ[key]}"
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
