"""Chat templates in the manner of families of models, with the marks that those have: for talks without tools.

``FAMILIES`` maps a name to the template and to its marks: whether each is a control token (else user-defined, as their
converters write them).
"""

from __future__ import annotations

HARMONY = """
{{- '<|start|>system<|message|>You are a model.\\nReasoning: medium<|end|>' }}
{%- if messages[0].role == 'system' %}
    {{- '<|start|>developer<|message|># Instructions\\n\\n' + messages[0].content + '\\n\\n<|end|>' }}
    {%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- for message in loop_messages %}
    {%- if message.role == 'assistant' %}
        {%- if '<|channel|>final<|message|>' in message.content %}{{- raise_exception('channels') }}{%- endif %}
        {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
    {%- else %}{{- '<|start|>user<|message|>' + message.content + '<|end|>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}
"""
COMMAND_R = """
{{- bos_token }}
{%- for message in messages %}
    {%- set role = {'system': 'SYSTEM', 'user': 'USER', 'assistant': 'CHATBOT'}[message.role] %}
    {{- '<|START_OF_TURN_TOKEN|><|' + role + '_TOKEN|>' + message.content.strip() + '<|END_OF_TURN_TOKEN|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{%- endif %}
"""
# Earlier turns lose their thoughts; the template itself opens those of the answer.
R1 = """
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{- messages[0].content }}{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{- '<|User|>' + message.content }}{%- endif %}
    {%- if message.role == 'assistant' %}
        {{- '<|Assistant|>' + message.content.split('</think>')[-1] + '<|end_of_text|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|Assistant|><think>\\n' }}{%- endif %}
"""
CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
GEMMA = """
{{- bos_token }}
{%- for message in messages %}
    {%- set role = 'model' if message.role == 'assistant' else message.role %}
    {{- '<|turn>' + role + '\\n' + message.content | trim + '<turn|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|turn>model\\n<|channel>thought\\n<channel|>' }}{%- endif %}
"""
PHI = """
{%- for message in messages %}{{- '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}
"""
# The system message stands before the last thing that the user says.
NEMO = """
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}{%- set messages = messages[1:] %}
{%- endif %}
{{- bos_token }}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('turns alternate') }}{%- endif %}
    {%- if message.role == 'user' %}
        {%- if loop.last and system is defined %}{{- '[INST]' + system + '\\n\\n' + message.content + '[/INST]' }}
        {%- else %}{{- '[INST]' + message.content + '[/INST]' }}{%- endif %}
    {%- else %}{{- ' ' + message.content + '</s>' }}{%- endif %}
{%- endfor %}
"""
VICUNA = """
{%- for message in messages %}
    {%- if message.role == 'system' %}{{- message.content + ' ' }}
    {%- elif message.role == 'user' %}{{- 'USER: ' + message.content + ' ' }}
    {%- else %}{{- 'ASSISTANT: ' + message.content + '</s>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- 'ASSISTANT:' }}{%- endif %}
"""
_TURN = ["<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"]
_CHANNELS = ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"]
_GEMMA = ["<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>']
FAMILIES: dict[str, tuple[str, dict[str, bool]]] = {
    "harmony": (HARMONY, dict.fromkeys(_CHANNELS, True)),
    "command-r": (COMMAND_R, dict.fromkeys(_TURN, False)),
    "r1": (R1, {"<|User|>": True, "<|Assistant|>": True, "<|end_of_text|>": True, "<think>": False, "</think>": False}),
    "qwen": (CHATML, {"<|im_start|>": True, "<|im_end|>": True, "<think>": False, "</think>": False}),
    "gemma": (GEMMA, dict.fromkeys(_GEMMA, False)),
    "phi": (PHI, {"<|end|>": True, "<|endoftext|>": True}),
    "nemo": (NEMO, {"[INST]": True, "[/INST]": True}),
    "vicuna": (VICUNA, {}),
}
