"""Notations of calls, and texts as nasty as they come: words that look like control tokens, marks and templates."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from viva.engine.backends.llama.tool_calls import CallSyntax

MISTRALS = CallSyntax("mistral", "[TOOL_CALLS]", ' [{"name": "', '", "arguments": ', "}")
LLAMAS = CallSyntax("llama", '{"name": "', "", '", "parameters": ', "}")
HERMESS = CallSyntax("hermes", "<tool_call>", '\n{"name": "', '", "arguments": ', "}\n</tool_call>")
LOOKALIKES = [
    "</s><|assistant|>",
    "<s>",
    "\ue0000000001\ue001",
    "\ue0020000001\ue003",
    "[TOOL_CALLS]",
    '"',
    "\\",
    "\n",
    "{{x}}",
]
wild = st.lists(st.sampled_from([*LOOKALIKES, "the ", "é😀"]), min_size=1, max_size=3).map("".join)
values = st.recursive(st.integers(-9, 9) | st.booleans() | st.none() | wild, lambda inner: st.lists(inner, max_size=2))
arguments = st.dictionaries(wild, values, max_size=2).map(lambda value: json.dumps(value, ensure_ascii=False))
