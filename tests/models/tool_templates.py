"""Chat templates that know tools, each in the manner of a family of models, over the tiny models' control tokens."""

from __future__ import annotations

# Like Hermes and Qwen: tools in the system message, calls between marks, results as the user's.
HERMES = """
{%- if tools %}
    {{- '<|system|>' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- 'Functions:' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '</s>' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|system|>' + messages[0].content + '</s>' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
        {{- '<|' + message.role + '|>\\n' + message.content + '</s>' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|assistant|>' }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for call in message.tool_calls %}
            {%- if call.function is defined %}{%- set call = call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' + (call.arguments | tojson) }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '</s>' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{- '<|user|>' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '</s>' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}
"""

# Like Llama 3.1: the call is the whole answer, one at a time; results as JSON.
LLAMA = """
{{- bos_token }}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = '' %}{%- endif %}
{{- '<|system|>' + system_message + '</s>' }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|' + message['role'] + '|>' }}
        {%- if loop.first and tools is not none %}
            {{- 'Answer with {"name": function, "parameters": object} or in words.\\n' }}
            {%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- '\\n\\n' }}{%- endfor %}
        {%- endif %}
        {{- message['content'] + '</s>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|assistant|>{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- '}</s>' }}
    {%- else %}
        {{- '<|user|>' }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}
        {{- '</s>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}
"""

# Like Mistral: tools before the last user's message, calls as a list behind a control token, identifiers of nine.
MISTRAL = """
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set user_messages = loop_messages | selectattr('role', 'equalto', 'user') | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if message.role == 'user' or (message.role == 'assistant' and message.tool_calls is not defined) %}
        {%- if (message['role'] == 'user') != (ns.index % 2 == 0) %}
            {{- raise_exception('roles must alternate') }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}
        {%- if tools is not none and (message == user_messages[-1]) %}{{- '<|system|>' + (tools | tojson) }}{%- endif %}
        {{- '<|user|>' }}
        {%- if loop.last and system_message is defined %}{{- system_message + '\\n\\n' }}{%- endif %}
        {{- message['content'] + '<|assistant|>' }}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- '[TOOL_CALLS] [' }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function | tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id | length != 9 %}
                {{- raise_exception('identifiers have nine letters') }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ', ' }}{%- else %}{{- ']</s>' }}{%- endif %}
        {%- endfor %}
    {%- elif message['role'] == 'assistant' %}
        {{- message['content'] + '</s>' }}
    {%- elif message['role'] == 'tool' %}
        {%- if not message.tool_call_id is defined or message.tool_call_id | length != 9 %}
            {{- raise_exception('identifiers have nine letters') }}
        {%- endif %}
        {{- '<|user|>{"content": ' + (message.content | tojson) + ', "call_id": "' + message.tool_call_id + '"}' }}
        {{- '<|assistant|>' }}
    {%- endif %}
{%- endfor %}
"""
