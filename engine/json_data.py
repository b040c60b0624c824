"""JSON data from models and users: lone surrogates replaced, values validated against a schema.

Models write half of an escaped surrogate pair inside the JSON of their answers; browsers send such a half if a text is
cut within a character. Neither a journal nor a request can carry a lone half.
"""

from __future__ import annotations

import re
from typing import Any

from .errors import ConfigurationError

# A pair, half of one, or any other escape, so that an escaped backslash never begins the next escape.
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u([dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL)


def strip_surrogates(text: str) -> str:
    """Return a text that UTF-8, SQLite and JSON can store: lone surrogates become U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def strip_surrogate_escapes(text: str) -> str:
    """Return JSON with U+FFFD in place of each escaped lone surrogate; the length is the same."""
    if "\\ud" not in text and "\\uD" not in text:
        return text
    return _ESCAPE.sub(lambda match: "\\ufffd" if match[1] else match[0], text)


def to_utf8_data(data: Any, otherwise: str = "replace") -> Any:
    """Return the same plain data with texts that UTF-8 can encode; `otherwise` is the error handler of `str.encode`."""
    if isinstance(data, str):
        return data.encode("utf-8", otherwise).decode()
    if isinstance(data, dict):
        return {to_utf8_data(name, otherwise): to_utf8_data(value, otherwise) for name, value in data.items()}
    return [to_utf8_data(value, otherwise) for value in data] if isinstance(data, list | tuple) else data


def find_schema_violations(schema: Any, value: Any) -> list[Any]:
    """Validate a value against a JSON schema; return jsonschema's errors, sorted by their path in the value.

    Raises:
        ConfigurationError: The schema is invalid, or refers to something outside of it.
    """
    import jsonschema  # slow to import and rarely needed
    from referencing import Registry

    try:
        rules = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        return sorted(
            rules(schema, registry=Registry()).iter_errors(value), key=lambda violation: list(map(str, violation.path))
        )
    except Exception as error:  # an invalid schema raises all kinds of errors
        message = " ".join(str(error).split())[:200]
        raise ConfigurationError(f"the schema cannot be used ({type(error).__name__}): {message}") from None
