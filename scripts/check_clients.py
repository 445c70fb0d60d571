#!/usr/bin/env python3
"""Checks a running larder server with clients that other people wrote.

    python3 -m venv venv && venv/bin/pip install openai
    venv/bin/python scripts/check_clients.py http://127.0.0.1:30000

Uses the openai package for completions, chat, streams and errors, and reads streams the way the stock serving
benchmark does: line by line, text cumulative on /generate, time to first token at the first chunk with text.
Prints one line per check; the exit code is the number of failures. Chat and text checks are left out, and named, where
the server has no tokenizer.
"""
import argparse
import http.client
import json
import sys
import time
import urllib.parse

import openai

FAILED = []


def check(name, ok, detail=""):
    print(f"{'ok  ' if ok else 'FAIL'} {name}{'' if ok else ': ' + str(detail)[:300]}")
    if not ok:
        FAILED.append(name)


class Raw:
    """Plain HTTP, a fresh connection per request as the stock benchmark uses."""

    def __init__(self, url, key):
        self.netloc = urllib.parse.urlsplit(url).netloc
        self.headers = {"Content-Type": "application/json"}
        if key:
            self.headers["Authorization"] = f"Bearer {key}"

    def open(self, method, path, body=None):
        conn = http.client.HTTPConnection(self.netloc, timeout=60)
        conn.request(method, path, None if body is None else json.dumps(body), self.headers)
        return conn.getresponse()

    def json(self, method, path, body=None):
        resp = self.open(method, path, body)
        text = resp.read().decode()
        try:
            return resp.status, json.loads(text)
        except ValueError:
            return resp.status, text

    def stream(self, path, body):
        """Yields (arrival time, data) for each line, [DONE] included as None."""
        resp = self.open("POST", path, body)
        if resp.status != 200:
            raise RuntimeError(f"{resp.status} {resp.read()[:300]}")
        for line in resp:
            line = line.strip()
            if not line:
                continue
            data = line.decode().removeprefix("data: ")
            yield time.perf_counter(), None if data == "[DONE]" else json.loads(data)


def bench_native(raw, prompt, n):
    """One request of the benchmark's native backend, by its own rules."""
    body = {
        "sampling_params": {"temperature": 0.0, "max_new_tokens": n, "ignore_eos": True},
        "stream": True, "lora_path": None, "return_logprob": False, "return_routed_experts": False,
        "logprob_start_len": -1, **prompt,
    }
    start = last = time.perf_counter()
    ttft, itl, seen, text, done, ids = 0.0, [], 0, "", False, []
    for at, data in raw.stream("/generate", body):
        if data is None:
            done = True
            continue
        if not data.get("text"):
            continue
        now = data["meta_info"]["completion_tokens"]
        ids = data["output_ids"]
        if not data["text"].startswith(text):
            raise RuntimeError("text is not cumulative")
        text = data["text"]
        if ttft == 0.0:
            ttft = at - start
        elif now > seen:
            itl += [(at - last) / (now - seen)] * (now - seen)
        else:
            continue
        last, seen = at, now
    return {"ttft": ttft, "itl": len(itl), "output_len": seen, "text": text, "done": done, "ids": ids}


def control(raw):
    status, models = raw.json("GET", "/v1/models")
    check("GET /v1/models", status == 200 and models["data"][0]["id"], models)
    for path in ("/model_info", "/get_model_info", "/server_info", "/get_server_info"):
        status, info = raw.json("GET", path)
        check(f"GET {path}", status == 200 and isinstance(info, dict), info)
    state = raw.json("GET", "/server_info")[1]["internal_states"][0]
    check("server_info as the benchmark reads it", state.get("avg_spec_accept_length") is None, state)
    for path in ("/flush_cache?timeout=60", "/flush_cache", "/reset_prefix_cache"):
        status, text = raw.json("POST", path)
        check(f"POST {path}", status == 200 and str(text).startswith("Cache flushed."), text)
    check("GET /health", raw.open("GET", "/health").status == 200)
    check("GET /health_generate", raw.open("GET", "/health_generate").status == 200)
    return models["data"][0]["id"], raw.json("GET", "/model_info")[1]


def native(raw, has_text):
    prompts = {"ids": {"input_ids": [1, 2, 3, 4, 5]}}
    if has_text:
        prompts["text"] = {"text": "One two three four"}
    for name, prompt in prompts.items():
        out = bench_native(raw, prompt, 8)
        check(f"benchmark, native, {name}", out["done"] and out["output_len"] == 8 and out["ttft"] > 0 and out["text"] and len(out["ids"]) == 8, out)
    status, out = raw.json("POST", "/generate", {"input_ids": [[1, 2], [3, 4]], "sampling_params": {"max_new_tokens": 2, "temperature": 0}})
    check("native batch", status == 200 and len(out) == 2 and out[1]["meta_info"]["prompt_tokens"] == 2, out)
    status, out = raw.json("POST", "/generate", {"input_ids": []})
    check("native error shape", status == 400 and set(out) == {"error"} and out["error"]["message"], out)
    status, out = raw.json("POST", "/generate", {"input_ids": [], "stream": True})
    check("a bad stream is refused before it starts", status == 400, out)


def bench_openai(raw, model, has_text):
    jobs = [("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 6, "best_of": 1}, lambda c: c["text"])]
    if has_text:
        jobs.append(("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello there"}], "max_completion_tokens": 6}, lambda c: c["delta"].get("content") or c["delta"].get("reasoning_content") or ""))
    for path, body, text_of in jobs:
        chunks, used, done = 0, None, False
        body |= {"model": model, "temperature": 0.0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        for _, data in raw.stream(path, body):
            done = data is None
            if data and data.get("usage"):
                used = data["usage"]["completion_tokens"]
            if data and data["choices"] and text_of(data["choices"][0]):
                chunks += 1
        check(f"benchmark, {path}", done and used == 6 and chunks >= 1, (done, used, chunks))


def completions(client, model, has_text):
    out = client.completions.create(model=model, prompt=[1, 2, 3], max_tokens=4, temperature=0)
    check("openai completion of ids", out.choices[0].text and out.usage.completion_tokens == 4 and out.usage.prompt_tokens == 3, out)
    out = client.completions.create(model=model, prompt=[[1, 2], [3]], max_tokens=2, n=2)
    check("openai batch with n", [c.index for c in out.choices] == [0, 1, 2, 3], out)
    text, reason, usage = "", None, None
    for chunk in client.completions.create(model=model, prompt=[1, 2, 3], max_tokens=4, temperature=0, stream=True, stream_options={"include_usage": True}):
        if chunk.choices:
            text += chunk.choices[0].text
            reason = chunk.choices[0].finish_reason or reason
        usage = chunk.usage or usage
    whole = client.completions.create(model=model, prompt=[1, 2, 3], max_tokens=4, temperature=0).choices[0].text
    check("openai completion stream", text == whole and reason == "length" and usage.completion_tokens == 4, (text, whole, reason, usage))
    if has_text:
        out = client.completions.create(model=model, prompt="abc", max_tokens=1, echo=True)
        check("openai echo", out.choices[0].text.startswith("abc"), out)


def chat(client, model):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    out = client.chat.completions.create(model=model, messages=messages, max_tokens=5, temperature=0)
    check("openai chat", out.choices[0].message.role == "assistant" and out.usage.completion_tokens <= 5, out)
    quick = {"chat_template_kwargs": {"enable_thinking": False}}
    out = client.chat.completions.create(model=model, messages=messages, max_completion_tokens=5, temperature=0, extra_body=quick)
    check("openai chat without thinking", out.choices[0].finish_reason in ("stop", "length"), out)
    roles, reasons, text, usage = [], [], "", None
    for chunk in client.chat.completions.create(model=model, messages=messages, max_tokens=5, temperature=0, stream=True, stream_options={"include_usage": True}, extra_body=quick):
        usage = chunk.usage or usage
        for c in chunk.choices:
            roles.append(c.delta.role)
            text += c.delta.content or ""
            reasons.append(c.finish_reason)
    ok = roles[0] == "assistant" and not any(roles[1:]) and reasons[-1] and not any(reasons[:-1])
    check("openai chat stream", ok and text == out.choices[0].message.content and usage.completion_tokens == out.usage.completion_tokens, (roles, reasons, text, out, usage))


def errors(client, model):
    for name, kind, kw in (
        ("negative temperature", openai.BadRequestError, {"temperature": -1}),
        ("empty prompt", openai.BadRequestError, {"prompt": []}),
        ("too long an answer", openai.BadRequestError, {"max_tokens": 10**9}),
        ("logprobs", openai.BadRequestError, {"logprobs": 1}),
        ("unknown model", openai.NotFoundError, {"model": "no-such-model"}),
    ):
        for stream in (False, True):
            try:
                client.completions.create(**({"model": model, "prompt": [1], "max_tokens": 1, "stream": stream} | kw))
                check(f"openai error: {name}, stream={stream}", False, "no error")
            except openai.APIStatusError as e:
                body = e.body if isinstance(e.body, dict) else {}
                check(f"openai error: {name}, stream={stream}", isinstance(e, kind) and body.get("message"), repr(e))


def hang_up(client, raw, model):
    for _ in client.completions.create(model=model, prompt=[1, 2], max_tokens=64, stream=True, extra_body={"ignore_eos": True}):
        break
    for _ in range(100):
        state = raw.json("GET", "/server_info")[1]["internal_states"][0]
        if state["num_running_reqs"] + state["num_waiting_reqs"] == 0:
            break
        time.sleep(0.05)
    check("nothing runs after all clients left", state["num_running_reqs"] + state["num_waiting_reqs"] == 0, state)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("url", help="the server, as http://host:port")
    p.add_argument("--api-key", default="")
    args = p.parse_args()
    raw = Raw(args.url, args.api_key)
    client = openai.OpenAI(base_url=args.url.rstrip("/") + "/v1", api_key=args.api_key or "none", max_retries=0)
    model, info = control(raw)
    has_text = bool(info.get("has_tokenizer"))
    check("openai model list", [m.id for m in client.models.list()] == [model] and client.models.retrieve(model).id == model)
    native(raw, has_text)
    bench_openai(raw, model, has_text)
    completions(client, model, has_text)
    if has_text:
        chat(client, model)
    else:
        print("left out: text and chat, for the server has no tokenizer")
    errors(client, model)
    hang_up(client, raw, model)
    print(f"{len(FAILED)} failed" if FAILED else "all good")
    return len(FAILED)


if __name__ == "__main__":
    sys.exit(main())
