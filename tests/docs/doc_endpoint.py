"""The endpoint of the pages: like ``chaos.py``, and where a schema is asked for, its answers follow the schema."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "servers"))
import chaos
from chaos_answers import answer

Schema = dict[str, Any]
_PLAIN = answer


def follows(schema: Schema, digest: bytes, whole: Schema) -> Any:
    """A value of the schema that depends on the digest alone."""
    digest = hashlib.blake2b(digest, digest_size=8).digest()
    if "$ref" in schema:
        return follows(whole["$defs"][schema["$ref"].rpartition("/")[2]], digest, whole)
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return follows(schema[choice][0], digest, whole)
    if "enum" in schema:
        return schema["enum"][digest[0] % len(schema["enum"])]
    if "const" in schema:
        return schema["const"]
    match schema.get("type"):
        case "object":
            parts = schema.get("properties", {}).items()
            return {name: follows(part, digest + name.encode(), whole) for name, part in parts}
        case "array":
            items = schema.get("items", {"type": "string"})
            return [follows(items, digest + bytes([n]), whole) for n in range(max(1, schema.get("minItems", 1)))]
        case "integer" | "number":
            low = schema.get("minimum", 0)
            return low + digest[0] % (int(schema.get("maximum", low + 3)) - int(low) + 1)
        case "boolean":
            return bool(digest[0] % 2)
        case _:
            return f"It follows from observation {digest.hex()[:6]}."


def said(body: dict[str, Any]) -> str:
    """As ``chaos_answers.answer``, but JSON of the schema where there is one."""
    wanted = body.get("response_format") or {}
    schema = (wanted.get("json_schema") or {}).get("schema") or wanted.get("schema")
    if not schema or "evaluator" in body["model"]:
        return _PLAIN(body)
    return json.dumps(follows(schema, json.dumps([body["messages"], body.get("seed")]).encode(), schema))


if __name__ == "__main__":
    vars(chaos)["answer"] = said
    asyncio.run(chaos.serve({}))
