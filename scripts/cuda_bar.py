"""What PyTorch's libraries reach at the shapes of one layer of Qwen3-30B-A3B: the bar for internal/device/cuda."""
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

dev, bf16 = "cuda", torch.bfloat16


def seconds(f, turns=10):
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
    return torch.randn(*shape, device=dev, dtype=bf16) * 0.05


def show(name, t, flops):
    print(f"{name:40s} {t * 1e6:10.1f} us {flops / t / 1e12:8.1f} TFLOP/s", flush=True)


def gemm():
    for name, n, k in (("qkv", 5120, 2048), ("o", 2048, 4096)):
        w = rand(n, k)
        for m in (16, 64, 1024, 8192, 16384):
            x = rand(m, k)
            show(f"cuBLAS {name} {m}x{n}x{k}", seconds(lambda: F.linear(x, w)), 2 * m * n * k)
    w, x = rand(151936, 2048), rand(64, 2048)
    show("cuBLAS head 64x151936x2048", seconds(lambda: F.linear(x, w)), 2 * 64 * 151936 * 2048)
    x, w = rand(8192, 8192), rand(8192, 8192)
    show("cuBLAS 8192^3", seconds(lambda: F.linear(x, w)), 2 * 8192**3)


def attention():
    for name, seqs, context, tokens in (("causal", 1, 0, 10240), ("extend", 8, 9216, 1024)):
        q, k, v = rand(seqs, 32, tokens, 128), rand(seqs, 4, context + tokens, 128), rand(seqs, 4, context + tokens, 128)
        keys = tokens * context + tokens * (tokens + 1) / 2
        for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
            # Causal masks of PyTorch start top left: the extend is timed unmasked, over all its keys.
            seen = keys if context == 0 else tokens * (context + tokens)
            try:
                with sdpa_kernel(backend):
                    t = seconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=context == 0, enable_gqa=True))
                show(f"{backend.name} {name} {seqs}x{context}+{tokens}", t, seqs * seen * 4 * 32 * 128)
            except RuntimeError as e:
                print(f"{backend.name} {name}: {str(e).splitlines()[0]}")


def experts():
    gate_up, down = rand(128, 2048, 1536), rand(128, 768, 2048)
    for rows in (8192, 16384):
        chosen = torch.rand(rows, 128, device=dev).topk(8).indices
        x = rand(rows, 2048)

        def run():
            order = chosen.flatten().argsort()
            ends = torch.bincount(chosen.flatten(), minlength=128).cumsum(0).to(torch.int32)
            h = torch._grouped_mm(x[order // 8], gate_up, offs=ends)
            g, u = h.chunk(2, -1)
            y = torch._grouped_mm(F.silu(g) * u, down, offs=ends)
            return torch.empty_like(y).index_copy_(0, order, y).view(rows, 8, 2048).sum(1)

        show(f"_grouped_mm experts {rows} tokens, all", seconds(run), rows * 8 * 3 * 2 * 2048 * 768)


print(torch.__version__, "cuDNN", torch.backends.cudnn.version(), torch.cuda.get_device_name())
gemm()
attention()
experts()
