"""Small chat templates that accept, refuse and drop the same messages as those of model families."""

from __future__ import annotations

_ALTERNATE = (
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
)
_LLAMA2_HEAD = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}"
)
_QWEN_CALLS = (
    "{% for c in m.tool_calls %}{% if c.function is defined %}{% set c = c.function %}{% endif %}"
    "{{ '\n<tool_call>\n{\"name\": \"' + c.name + '\", \"arguments\": ' }}{{ c.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}"
)

SMALL: dict[str, str] = {
    "llama2": "{{ bos_token }}" + _LLAMA2_HEAD + "{% for m in loop_messages %}" + _ALTERNATE + (
        "{% if loop.index0 == 0 and system_message != false %}"
        "{% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + m['content'] %}"
        "{% else %}{% set content = m['content'] %}{% endif %}"
        "{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
        "{% elif m['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
    ),
    "mistral-v1": "{{ bos_token }}{% for m in messages %}" + _ALTERNATE + (
        "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
        "{% elif m['role'] == 'assistant' %}{{ m['content'] + eos_token }}"
        "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
    ),
    "mistral-v3": (
        "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}"
        "{% else %}{% set rest = messages %}{% endif %}{% set users = rest | selectattr('role', 'equalto', 'user') | list %}"
        "{% set ns = namespace(index=0) %}{% for m in rest %}"
        "{% if not (m.role == 'tool' or m.role == 'tool_results' or (m.tool_calls is defined and m.tool_calls is not none)) %}"
        "{% if (m['role'] == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
        "{% set ns.index = ns.index + 1 %}{% endif %}{% endfor %}{{ bos_token }}{% for m in rest %}"
        "{% if m['role'] == 'user' %}{% if tools is not none and (m == users[-1]) %}{{ '[AVAILABLE_TOOLS] [' }}"
        "{% for tool in tools %}{{ tool.function | tojson }}{% endfor %}{{ '][/AVAILABLE_TOOLS]' }}{% endif %}"
        "{% if loop.last and system is defined %}{{ '[INST] ' + system + '\n\n' + m['content'] + '[/INST]' }}"
        "{% else %}{{ '[INST] ' + m['content'] + '[/INST]' }}{% endif %}"
        "{% elif m.tool_calls is defined and m.tool_calls is not none %}{{ '[TOOL_CALLS] [' }}{% for c in m.tool_calls %}"
        "{% set out = c.function | tojson %}{{ out[:-1] }}{% if not c.id is defined or c.id | length != 9 %}"
        "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}"
        "{{ ', \"id\": \"' + c.id + '\"}' }}{% endfor %}{{ ']' + eos_token }}"
        "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] | trim + eos_token }}"
        "{% elif m['role'] == 'tool_results' or m['role'] == 'tool' %}"
        "{{ '[TOOL_RESULTS] {\"content\": ' + m['content'] | string + ', ' }}"
        "{% if not m.tool_call_id is defined or m.tool_call_id | length != 9 %}"
        "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}"
        "{{ '\"call_id\": \"' + m.tool_call_id + '\"}[/TOOL_RESULTS]' }}"
        "{% else %}{{ raise_exception('Only user and assistant roles are supported') }}{% endif %}{% endfor %}"
    ),
    "gemma": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}" + _ALTERNATE + (
        "{% if m['role'] == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = m['role'] %}{% endif %}"
        "{{ '<start_of_turn>' + role + '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
    ),
    "gemma3": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% if messages[0]['content'] is string %}"
    "{% set prefix = messages[0]['content'] + '\n\n' %}{% else %}{% set prefix = messages[0]['content'][0]['text'] + '\n\n' %}{% endif %}"
    "{% set rest = messages[1:] %}{% else %}{% set prefix = '' %}{% set rest = messages %}{% endif %}{% for m in rest %}" + _ALTERNATE + (
        "{% if m['role'] == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = m['role'] %}{% endif %}"
        "{{ '<start_of_turn>' + role + '\n' + (prefix if loop.first else '') }}{% if m['content'] is string %}{{ m['content'] | trim }}"
        "{% elif m['content'] is iterable %}{% for item in m['content'] %}{% if item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}{% endfor %}"
        "{% else %}{{ raise_exception('Invalid content type') }}{% endif %}{{ '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
    ),
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "yi": "{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}{% endif %}"
    "{% if system_message is defined %}{{ '<|im_start|>system\n' + system_message + '<|im_end|>\n' }}{% endif %}{% for m in messages %}"
    "{% set content = m['content'] %}{% if m['role'] == 'user' %}{{ '<|im_start|>user\n' + content + '<|im_end|>\n<|im_start|>assistant\n' }}"
    "{% elif m['role'] == 'assistant' %}{{ content + '<|im_end|>' + '\n' }}{% endif %}{% endfor %}",
    "zephyr": "{% for m in messages %}{% if m['role'] == 'user' %}{{ '<|user|>\n' + m['content'] + eos_token }}"
    "{% elif m['role'] == 'system' %}{{ '<|system|>\n' + m['content'] + eos_token }}"
    "{% elif m['role'] == 'assistant' %}{{ '<|assistant|>\n' + m['content'] + eos_token }}{% endif %}"
    "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}{% endfor %}",
    "vicuna": "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'].strip() + '\n\n' %}"
    "{% else %}{% set rest = messages %}{% set system = '' %}{% endif %}{{ bos_token + system }}{% for m in rest %}" + _ALTERNATE + (
        "{% if m['role'] == 'user' %}{{ 'USER: ' + m['content'].strip() + '\n' }}{% elif m['role'] == 'assistant' %}"
        "{{ 'ASSISTANT: ' + m['content'].strip() + eos_token + '\n' }}{% endif %}"
        "{% if loop.last and m['role'] == 'user' and add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}{% endfor %}"
    ),
    "olmo": "{{ eos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '<|user|>\n' + m['content'] + '\n' }}"
    "{% elif m['role'] == 'assistant' %}{{ '<|assistant|>\n' + m['content'] + eos_token + '\n' }}{% endif %}"
    "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}",
    "phi3": "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '<|user|>' + '\n' + m['content'] + '<|end|>' + '\n' + '<|assistant|>' + '\n' }}"
    "{% elif m['role'] == 'assistant' %}{{ m['content'] + '<|end|>' + '\n' }}{% endif %}{% endfor %}",
    "phi4-mini": "{% for m in messages %}{% if m['role'] == 'system' and 'tools' in m and m['tools'] is not none %}"
    "{{ '<|' + m['role'] + '|>' + m['content'] + '<|tool|>' + m['tools'] + '<|/tool|>' + '<|end|>' }}"
    "{% else %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}",
    "deepseek-v2": "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ 'User: ' + m['content'] + '\n\n' }}"
    "{% elif m['role'] == 'assistant' %}{{ 'Assistant: ' + m['content'] + eos_token }}"
    "{% elif m['role'] == 'system' %}{{ m['content'] + '\n\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}",
    "deepseek-v3": "{% set ns = namespace(system='') %}{% for m in messages %}{% if m['role'] == 'system' %}{% set ns.system = m['content'] %}{% endif %}{% endfor %}"
    "{{ bos_token + ns.system }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '<｜User｜>' + m['content'] }}{% endif %}"
    "{% if m['role'] == 'assistant' and m['content'] is none %}{% for c in m['tool_calls'] %}"
    "{{ '<｜tool▁calls▁begin｜>' + c['type'] + '<｜tool▁sep｜>' + c['function']['name'] + '\n' + c['function']['arguments'] + '<｜tool▁call▁end｜>' }}{% endfor %}{% endif %}"
    "{% if m['role'] == 'assistant' and m['content'] is not none %}{{ '<｜Assistant｜>' + m['content'].split('</think>')[-1] + eos_token }}{% endif %}"
    "{% if m['role'] == 'tool' %}{{ '<｜tool▁output▁begin｜>' + m['content'] + '<｜tool▁output▁end｜>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\n' }}{% endif %}",
    "llama31": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] | trim %}{% set messages = messages[1:] %}"
    "{% else %}{% set system = '' %}{% endif %}{{ '<|start_header_id|>system<|end_header_id|>\n\n' }}"
    "{% if tools is not none %}{% for t in tools %}{{ t | tojson(indent=4) }}{% endfor %}{% endif %}{{ system + '<|eot_id|>' }}"
    "{% for m in messages %}{% if not (m.role == 'ipython' or m.role == 'tool' or 'tool_calls' in m) %}"
    "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' }}"
    "{% elif 'tool_calls' in m %}{% if not m.tool_calls | length == 1 %}{{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}"
    "{% set c = m.tool_calls[0].function %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n{\"name\": \"' + c.name + '\", \"parameters\": ' }}"
    "{{ c.arguments | tojson }}{{ '}<|eot_id|>' }}{% elif m.role == 'tool' or m.role == 'ipython' %}"
    "{{ '<|start_header_id|>ipython<|end_header_id|>\n\n' }}{% if m.content is mapping or m.content is iterable %}{{ m.content | tojson }}{% else %}{{ m.content }}{% endif %}{{ '<|eot_id|>' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    "llama4": "{{ bos_token }}{% for m in messages %}{{ '<|header_start|>' + m['role'] + '<|header_end|>\n\n' }}{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for c in m['content'] %}{% if c['type'] == 'text' %}{{ c['text'] | trim }}{% endif %}{% endfor %}{% endif %}"
    "{% if 'tool_calls' in m and m.tool_calls | length > 0 %}{% for c in m.tool_calls %}{{ '{\"name\": \"' + c.function.name + '\", \"parameters\": ' }}{{ c.function.arguments | tojson }}{{ '}' }}{% endfor %}{% endif %}"
    "{{ '<|eot|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|header_start|>assistant<|header_end|>\n\n' }}{% endif %}",
    "qwen3": "{% if tools %}{{ '<|im_start|>system\n' }}{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}"
    "{% for t in tools %}{{ t | tojson }}{% endfor %}{{ '<|im_end|>\n' }}{% elif messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{% if m.content is string %}{% set content = m.content %}{% else %}{% set content = '' %}{% endif %}"
    "{% if m.role == 'user' or (m.role == 'system' and not loop.first) %}{{ '<|im_start|>' + m.role + '\n' + content + '<|im_end|>\n' }}"
    "{% elif m.role == 'assistant' %}{{ '<|im_start|>assistant\n' + content }}{% if m.tool_calls %}" + _QWEN_CALLS + "{% endif %}{{ '<|im_end|>\n' }}"
    "{% elif m.role == 'tool' %}{{ '<|im_start|>user\n<tool_response>\n' + content + '\n</tool_response><|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}",
    "qwen3.5": "{% set ns = namespace(asked=false) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.asked = true %}{% endif %}{% endfor %}"
    "{% if not ns.asked %}{{ raise_exception('No user query found in messages.') }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'system' %}{% if not loop.first %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "{{ '<|im_start|>system\n' + m.content + '<|im_end|>\n' }}{% elif m.role == 'user' %}{{ '<|im_start|>user\n' + m.content + '<|im_end|>\n' }}"
    "{% elif m.role == 'assistant' %}{{ '<|im_start|>assistant\n' + (m.content or '') }}{% for c in m.tool_calls or [] %}{{ '<tool_call>\n<function=' + c.function.name + '>\n' }}"
    "{% for k, v in c.function.arguments | items %}{{ '<parameter=' + k + '>\n' }}{{ v if v is string else v | tojson }}{{ '\n</parameter>\n' }}{% endfor %}{{ '</function>\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% elif m.role == 'tool' %}{{ '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}"
    "{% else %}{{ raise_exception('Unexpected message role.') }}{% endif %}{% endfor %}{% for t in tools or [] %}{{ t.function | tojson }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% if enable_thinking is defined and enable_thinking is true %}{{ '<think>\n' }}{% else %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}",
    "gpt-oss": "{% if messages[0].role in ('developer', 'system') %}{% set told = messages[0].content %}{% set rest = messages[1:] %}{% else %}{% set told = '' %}{% set rest = messages %}{% endif %}"
    "{{ '<|start|>system<|message|>You are ChatGPT.<|end|>' }}{% if told or tools %}{{ '<|start|>developer<|message|>' + told }}{% for t in tools or [] %}{% set f = t.function %}"
    "{{ '// ' + f.description + '\ntype ' + f.name + ' = ' }}{% if f.parameters and f.parameters.properties %}{% for name, p in f.parameters.properties.items() %}"
    "{% if p.description %}{{ '// ' + p.description }}{% endif %}{{ name + ('?' if name not in (f.parameters.required or []) else '') + ': ' }}"
    "{% if p.type == 'array' %}{{ p['items'].type + '[]' }}{% else %}{{ p.type }}{% endif %}{% endfor %}{% endif %}{% endfor %}{{ '<|end|>' }}{% endif %}"
    "{% set last = namespace(name=none) %}{% for m in rest %}{% if m.role == 'assistant' %}{% if m.tool_calls %}{% set c = m.tool_calls[0].function %}"
    "{% if m.content and m.thinking %}{{ raise_exception('Cannot pass both content and thinking in an assistant message with tool calls!') }}{% endif %}"
    "{{ '<|start|>assistant to=functions.' + c.name + '<|channel|>commentary json<|message|>' }}{{ c.arguments | tojson }}{{ '<|call|>' }}{% set last.name = c.name %}"
    "{% else %}{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}{% set last.name = none %}{% endif %}"
    "{% elif m.role == 'tool' %}{% if last.name is none %}{{ raise_exception('Message has tool role, but there was no previous assistant message with a tool call!') }}{% endif %}"
    "{{ '<|start|>functions.' + last.name + ' to=assistant<|channel|>commentary<|message|>' }}{{ m.content | tojson }}{{ '<|end|>' }}"
    "{% elif m.role == 'user' %}{{ '<|start|>user<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}",
    "granite3": "{% if messages[0]['role'] == 'system' %}{% set told = messages[0]['content'] %}{% set rest = messages[1:] %}{% else %}{% set told = 'You are Granite.' %}{% set rest = messages %}{% endif %}"
    "{{ '<|start_of_role|>system<|end_of_role|>' + told + '<|end_of_text|>\n' }}{% if tools %}{{ '<|start_of_role|>available_tools<|end_of_role|>' + tools | tojson(indent=4) + '<|end_of_text|>\n' }}{% endif %}"
    "{% for m in rest %}{{ '<|start_of_role|>' + m['role'] + '<|end_of_role|>' + m['content'] + '<|end_of_text|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}",
    "exaone": "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}{{ '[|system|][|endofturn|]\n' }}{% endif %}{{ '[|' + m['role'] + '|]' + m['content'] }}"
    "{% if m['role'] == 'user' %}{{ '\n' }}{% else %}{{ '[|endofturn|]\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '[|assistant|]' }}{% endif %}",
    "hunyuan": "{% if messages[0]['role'] == 'system' %}{% set told = messages[0]['content'] %}{% set rest = messages[1:] %}{% else %}{% set told = '' %}{% set rest = messages %}{% endif %}"
    "{{ '<|hy_begin|>' + told + '<|hy_place_holder|>' }}{% for m in rest %}{% if m['role'] == 'user' %}{{ '<|hy_User|>' + m['content'] }}{% elif m['role'] == 'assistant' %}{{ '<|hy_Assistant|>' + m['content'] + '<|hy_eos|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|hy_Assistant|>' }}{% endif %}",
    "ernie": "{{ '<|begin_of_sentence|>' }}{% for m in messages %}{% if m['role'] == 'user' %}{{ 'User: ' + m['content'] + '\n' }}{% elif m['role'] == 'assistant' %}{{ 'Assistant: ' + m['content'] + '<|end_of_sentence|>' }}"
    "{% elif m['role'] == 'system' %}{{ m['content'] + '\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}",
    "glm4": "{{ '[gMASK]<sop>' }}{% for m in messages %}{% if m.role == 'system' %}{{ '<|system|>\n' + m.content }}{% elif m.role == 'user' %}{{ '<|user|>\n' + m.content }}"
    "{% elif m.role == 'assistant' %}{{ '<|assistant|>' + (m.metadata or '') }}{% if m.tool_calls is defined %}{% for c in m.tool_calls %}{{ c.function.name + '\n' + c.function.arguments | tojson }}{% endfor %}{% else %}{{ '\n' + m.content }}{% endif %}"
    "{% elif m.role == 'observation' or m.role == 'tool' %}{{ '<|observation|>\n' + m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
    "smollm3": "{% set told = messages[0].content if messages[0].role == 'system' else '' %}{{ '<|im_start|>system\n' + told + '<|im_end|>\n' }}{% for m in messages %}"
    "{% set content = m.content if m.content is string else '' %}{% if m.role == 'user' %}{{ '<|im_start|>user\n' + content + '<|im_end|>\n' }}{% elif m.role == 'assistant' %}"
    "{{ '<|im_start|>assistant\n' + content.lstrip('\n') + '<|im_end|>\n' }}{% elif m.role == 'tool' %}{{ '<|im_start|>user\n' + content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "baichuan": "{% for m in messages %}{% if m['role'] == 'user' %}{{ '<reserved_106>' + m['content'] }}{% elif m['role'] == 'assistant' %}{{ '<reserved_107>' + m['content'] }}{% endif %}{% endfor %}{{ '<reserved_107>' }}",
    "parts only": "{% for m in messages %}{{ m.role + ': ' }}{% for p in m.content %}{{ p['text'] }}{% endfor %}{{ '\n' }}{% endfor %}",
}  # fmt: skip
