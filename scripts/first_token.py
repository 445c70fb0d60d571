#!/usr/bin/env python3
"""How long a server takes from its start to its first token: starts `larder serve` with the flags given, asks until it
answers, and prints the seconds to the first health answer, to the first 200 and to the first token; the best of three.

    python3 scripts/first_token.py bin/larder serve --num-layers 1 --port 30999
"""
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request

args = sys.argv[1:]
port = args[args.index("--port") + 1]
body = json.dumps({"input_ids": list(range(100, 116)), "sampling_params": {"max_new_tokens": 1, "temperature": 0}}).encode()


def ask(path, data=None):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status
    except urllib.error.HTTPError as e:
        return e.code
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return 0


def once():
    began = time.time()
    server = subprocess.Popen(args, stderr=subprocess.PIPE, text=True)
    listening = healthy = None
    while server.poll() is None:
        status = ask("/health")
        now = time.time() - began
        listening = listening or (now if status else None)
        if status == 200:
            healthy = now
            break
        time.sleep(0.01)
    else:
        sys.exit(server.stderr.read())
    if ask("/generate", body) != 200:
        sys.exit("the first request failed")
    first = time.time() - began
    server.terminate()
    server.wait()
    return first, healthy, listening


first, healthy, listening = min(once() for _ in range(3))
print(f"listening after {listening:.2f} s, healthy after {healthy:.2f} s, first token after {first:.2f} s")
