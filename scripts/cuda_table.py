#!/usr/bin/env python3
"""One table: the CUDA device's kernels beside PyTorch's libraries (cuBLAS, cuDNN and flash attention, its grouped product)
and Hugging Face's whole layer, at the shapes of one layer of Qwen3-30B-A3B, on the same GPU in the same run.

    CGO_ENABLED=0 go test -c -o .bin/cuda.test ./internal/device/cuda      # where Go is
    python3 scripts/cuda_table.py                                          # where the GPU, torch and transformers are

Each figure is the mean of 20 turns by events of the GPU after a warm-up, passes by wall time. No clocks are set; inputs
are random, which cost more power than zeros. Where a library has no such operation there is a dash.
"""
import os
import pathlib
import re
import subprocess

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DEV, BF16, TURNS = "cuda", torch.bfloat16, 20
ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = os.environ.get("LARDER_CUDA_TEST", str(ROOT / ".bin" / "cuda.test"))


def seconds(f, turns=TURNS):
    for _ in range(3):
        f()
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a.record()
    for _ in range(turns):
        f()
    b.record()
    torch.cuda.synchronize()
    return a.elapsed_time(b) / turns / 1e3


def rand(*shape):
    return torch.randn(*shape, device=DEV, dtype=BF16) * 0.05


def product(m, n, k):
    x, w = rand(m, k), rand(n, k)
    return seconds(lambda: F.linear(x, w))


def attention(backend, seqs, context, tokens):
    """Causal masks of PyTorch start top left, so what continues a context is timed without one, over all its keys."""
    q, k, v = rand(seqs, 32, tokens, 128), rand(seqs, 4, context + tokens, 128), rand(seqs, 4, context + tokens, 128)
    with sdpa_kernel(backend):
        return seconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=context == 0, enable_gqa=True))


def experts(rows):
    gate_up, down = rand(128, 2048, 1536), rand(128, 768, 2048)
    chosen = torch.rand(rows, 128, device=DEV).topk(8).indices
    x = rand(rows, 2048)

    def run():
        order = chosen.flatten().argsort()
        ends = torch.bincount(chosen.flatten(), minlength=128).cumsum(0).to(torch.int32)
        g, u = torch._grouped_mm(x[order // 8], gate_up, offs=ends).chunk(2, -1)
        y = torch._grouped_mm(F.silu(g) * u, down, offs=ends)
        return torch.empty_like(y).index_copy_(0, order, y).view(rows, 8, 2048).sum(1)

    return seconds(run, 5)


def layer(tokens):
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
    config = Qwen3MoeConfig(vocab_size=151936, hidden_size=2048, num_hidden_layers=1, num_attention_heads=32, num_key_value_heads=4,
                            head_dim=128, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, max_position_embeddings=40960)
    with torch.device(DEV):
        model = Qwen3MoeForCausalLM(config).to(BF16).eval()
    ids = torch.randint(0, 151936, (1, tokens), device=DEV)
    with torch.no_grad():
        return seconds(lambda: model(ids, logits_to_keep=1), 5)


def theirs(f, *args):
    try:
        return f(*args)
    except (RuntimeError, ImportError, ValueError) as e:
        print(f"note: {f.__name__}{args}: {str(e).splitlines()[0]}")
        return None
    finally:
        torch.cuda.empty_cache()


def ours():
    """Seconds of each benchmark: by events where it has them, else by wall."""
    run = subprocess.run([BINARY, "-test.run", "^$", "-test.bench", "GEMM|Head|Attention|MLP|Pass", "-test.benchtime", f"{TURNS}x"],
                         capture_output=True, text=True, env=dict(os.environ, LARDER_REQUIRE_CUDA="1"))
    if run.returncode:
        raise SystemExit(run.stdout + run.stderr)
    out = {}
    for line in run.stdout.splitlines():
        m = re.match(r"Benchmark(\S+?)(?:-\d+)?\s+\d+\s+([\d.]+) ns/op(.*)", line)
        if m:
            gpu = re.search(r"([\d.]+) gpu-us/op", m[3])
            out[m[1]] = float(gpu[1]) / 1e6 if gpu else float(m[2]) / 1e9
    return out


def rate(t, amount, unit):
    if t is None:
        return "-"
    if unit == "us":
        return f"{t * 1e6:,.0f} us"
    if unit == "tok/s":
        return f"{amount / t:,.0f} tok/s"
    return f"{amount / t / 1e12:.0f} TFLOP/s"


def main():
    cudnn, flash = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION
    keys = 10240 * 10241 / 2
    extend = 8 * (1024 * 9216 + 1024 * 1025 / 2)
    rows = [  # what, our benchmark, the library's seconds, which library, work, unit, the library's work where it differs
        ("product 8192 x 8192 x 8192", "GEMM/cube", theirs(product, 8192, 8192, 8192), "cuBLAS", 2 * 8192**3, "flops", None),
        ("QKV, 16,384 rows", "GEMM/qkv/16384", theirs(product, 16384, 5120, 2048), "cuBLAS", 2 * 16384 * 5120 * 2048, "flops", None),
        ("O, 16,384 rows", "GEMM/o/16384", theirs(product, 16384, 2048, 4096), "cuBLAS", 2 * 16384 * 2048 * 4096, "flops", None),
        ("QKV, 64 rows", "GEMM/qkv/64", theirs(product, 64, 5120, 2048), "cuBLAS", 0, "us", None),
        ("O, 64 rows", "GEMM/o/64", theirs(product, 64, 2048, 4096), "cuBLAS", 0, "us", None),
        ("head, 64 rows", "Head/64", theirs(product, 64, 151936, 2048), "cuBLAS", 0, "us", None),
        ("attention, 10,240 causal", "Attention/1x0+10240", theirs(attention, cudnn, 1, 0, 10240), "cuDNN", keys * 16384, "flops", None),
        ("the same", "Attention/1x0+10240", theirs(attention, flash, 1, 0, 10240), "flash", keys * 16384, "flops", None),
        ("attention, 8 x 1,024 over 10,240", "Attention/8x9216+1024", theirs(attention, cudnn, 8, 9216, 1024), "cuDNN, no mask", extend * 16384, "flops",
         8 * 1024 * 10240 * 16384),
        ("attention, 64 x 1 over 10,240", "Attention/64x10240+1", None, "", 0, "us", None),
        ("attention, 16 x 1 over 10,240", "Attention/16x10240+1", None, "", 0, "us", None),
        ("MLP, 16,384 tokens, all of it", "MLP/16384", theirs(experts, 16384), "_grouped_mm, no norm, no router", 16384 * 8 * 6 * 2048 * 768, "flops", None),
        ("MLP, 65,536 tokens, all of it", "MLP/65536", theirs(experts, 65536), "_grouped_mm, no norm, no router", 65536 * 8 * 6 * 2048 * 768, "flops", None),
        ("whole layer and head, 10,240 tokens", "Pass/1x0+10240", theirs(layer, 10240), "transformers", 10240, "tok/s", None),
        ("8 x 10,240 recomputed", "Pass/8x0+10240", None, "", 8 * 10240, "tok/s", None),
        ("64 x 1,024 over 9,216 in HBM", "Pass/64x9216+1024", None, "", 64 * 10240, "tok/s", None),
        ("64 x 1 over 10,240, a step", "Pass/64x10240+1", None, "", 0, "us", None),
        ("16 x 1 over 10,240, a step", "Pass/16x10240+1", None, "", 0, "us", None),
    ]
    mine = ours()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}\n")
    print("| what | larder | library | | larder is |\n|---|---|---|---|---|")
    for what, name, t, library, work, unit, other in rows:
        own = mine.get(name)
        ratio = "-" if t is None or own is None else f"{(work / own) / ((other or work) / t):.2f} x" if work else f"{t / own:.2f} x"
        print(f"| {what} | {rate(own, work, unit)} | {rate(t, other or work, unit)} | {library} | {ratio} |")


main()
