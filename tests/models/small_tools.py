"""Two tools, and the right call of one of them, for tests of tools in the engine."""

from __future__ import annotations

from viva.engine.tools import Toolbox

PLACE = {
    "type": "object",
    "properties": {"place": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["C", "F"]}},
    "required": ["place"],
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "What it is like.", "parameters": PLACE}}
TOOLS = Toolbox([WEATHER, {"name": "time"}])
RIGHT = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c-1", "function": {"name": "weather", "arguments": '{"place": "Bern", "days": 2}'}}],
}
