"""JSON schemas by others, held against values.

A schema refers to itself alone: a ``$ref`` to a URL or a file, which jsonschema would load, is an error.
"""

from __future__ import annotations

from typing import Any

from .errors import ConfigurationError


def broken_rules(schema: Any, value: Any) -> list[Any]:
    """Return what a JSON schema says against a value, as errors of jsonschema, by their place in the value.

    Raises:
        ConfigurationError: The schema is none, or refers to what is not in it.
    """
    import jsonschema  # slow, and seldom needed
    from referencing import Registry

    try:
        rules = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        return sorted(rules(schema, registry=Registry()).iter_errors(value), key=lambda one: list(map(str, one.path)))
    except Exception as error:  # of a schema that is none each part fails in its own way
        said = " ".join(str(error).split())[:200]
        raise ConfigurationError(f"the schema cannot be used ({type(error).__name__}): {said}") from None
