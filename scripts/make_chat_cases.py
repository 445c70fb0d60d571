#!/usr/bin/env python3
"""Make internal/tokenizer/testdata/chat.jsonl.gz: what transformers renders Qwen3's chat template to.

    pip install transformers jinja2              # made with transformers 5.24.0, jinja2 3.1.6
    sh scripts/fetch_tokenizer.sh
    python scripts/make_chat_cases.py [output file]

One case a line: {"messages", "tools", "add_generation_prompt", "enable_thinking", "prompt"}; tools are the JSON texts
they were parsed from, and so are arguments of tool calls, so that spacing, order and number formats count.
"""

import gzip
import itertools
import json
import pathlib
import random
import sys

from transformers.utils.chat_template_utils import render_jinja_template

SEED = 20260727
CONFIG = pathlib.Path("data/tokenizer/tokenizer_config.json")

TOOLS = [
    '{"type": "function", "function": {"name": "get_weather", "description": "Weather <b>now</b> & later", "parameters": {"type": "object", '
    '"properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 3}}, "required": ["city"]}}}',
    '{"z":1,"a":[1.0,-0.0,-0,2.50,1e5,1E-7,1e16,123456789012345678901234567890,1e22,0.1,1e999,-1e999,5e-324,0.0001,0.00001],"m":{},"n":[],"t":true,"x":null,"a b":"\\u00e9\\n"}',
    '{"name":"引号","s":"\\"\\\\\\/\\b\\f\\r\\t\\u0001\\u007f\\u2028\\ud83d\\ude00 \'<>&"}',
    '{"a":1,"b":2,"a":{"c":[[],{}]}}',
]
ARGUMENTS = ['{"city": "Paris", "days": 2}', '{"city":"北京"}', '{}', '"{\\"city\\":\\"Oslo\\"}"', '"not json"', '""', '[1,2.0]', 'null']
TEXTS = [
    "", "Hello", "你好", "\n\nleading", "trailing\n\n", "<think>\nhm\n</think>\n\nanswer", "no start</think>\nanswer", "<think>a</think>b<think>c</think>d",
    "<think>\n\n</think>\n\n", "</think>", "x<think>y<think>z\n</think>w", "<tool_response>\nok\n</tool_response>", "<tool_response>open", " spaces ",
    "line\r\n</think>\r\nnext", "<think>unclosed",
]
REASONS = [None, None, None, "because", "\n\nbecause\nof\n", "<think>nested</think>", "\n"]


def message(rng, role):
    m = {"role": role, "content": rng.choice(TEXTS)}
    if role == "assistant":
        reason = rng.choice(REASONS)
        if reason is not None:
            m["reasoning_content"] = reason
        if rng.random() < 0.4:
            m["tool_calls"] = [{"name": rng.choice(["get_weather", "f\"x"]), "arguments": rng.choice(ARGUMENTS)} for _ in range(rng.randint(1, 3))]
    return m


def conversations(rng):
    roles = ["system", "user", "assistant", "tool"]
    for n in (1, 2, 3):
        for combo in itertools.product(roles, repeat=n):
            yield [message(rng, r) for r in combo]
    for _ in range(400):
        yield [message(rng, r) for r in rng.choices(roles, [1, 4, 4, 3], k=rng.randint(2, 9))]


def reference(messages, rng):
    """The messages as transformers takes them: calls plain or under "function", arguments parsed."""
    out = []
    for m in messages:
        m = dict(m)
        if "tool_calls" in m:
            calls = [{"name": c["name"], "arguments": json.loads(c["arguments"])} for c in m["tool_calls"]]
            m["tool_calls"] = [{"type": "function", "function": c} for c in calls] if rng.random() < 0.5 else calls
        out.append(m)
    return out


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "internal/tokenizer/testdata/chat.jsonl.gz")
    template = json.loads(CONFIG.read_text())["chat_template"]
    rng = random.Random(SEED)
    lines = []
    for messages in conversations(rng):
        tools = rng.sample(TOOLS, rng.randint(1, 3)) if rng.random() < 0.3 else []
        options = {"add_generation_prompt": rng.random() < 0.6, "enable_thinking": rng.random() < 0.5}
        rendered, _ = render_jinja_template(
            conversations=[reference(messages, rng)], tools=[json.loads(t) for t in tools] or None, chat_template=template, **options
        )
        case = {"messages": messages, "tools": tools, **options, "prompt": rendered[0]}
        lines.append(json.dumps(case, separators=(",", ":")))
    out.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), 9, mtime=0))
    print(out, len(lines), "cases,", out.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
