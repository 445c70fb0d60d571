#!/usr/bin/env python3
"""Compare the CUDA device with Hugging Face transformers on the same GPU.

    CGO_ENABLED=0 go test -c -o .bin/cuda.test ./internal/device/cuda      # where Go is
    python3 scripts/check_transformers.py [folder for checkpoints]         # where the GPU, torch and transformers are

Makes checkpoints of random bf16 weights: one layer of Qwen3-30B-A3B at full size, and small models with all layers.
Gives each the same 1,000 random prompts, and takes the next token's logits of three runs: transformers in float32
(the measure), transformers in bf16, and ours. Prints how far the two bf16 runs are from the measure, in standard
deviations of the logits, how often the greedy tokens agree, and how near the two best logits are where they do not.
Fails if ours is farther from the measure than transformers' own bf16 by more than half, or if it picks another token
where the measure's choice is no near tie.
"""
import json
import os
import pathlib
import subprocess
import sys

import numpy
import torch
import transformers
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

PROMPTS, LENGTHS = 1000, (17, 64, 129, 300)
SHARED = dict(vocab_size=151936, max_position_embeddings=40960, rms_norm_eps=1e-6, hidden_act="silu", eos_token_id=151645,
              bos_token_id=151643, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
MODELS = {
    "qwen3-30b-a3b, 1 layer": (Qwen3MoeForCausalLM, Qwen3MoeConfig(
        hidden_size=2048, num_hidden_layers=1, num_attention_heads=32, num_key_value_heads=4, head_dim=128, intermediate_size=6144,
        num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=True, tie_word_embeddings=False, **SHARED)),
    "qwen3-0.6b, 28 layers": (Qwen3ForCausalLM, Qwen3Config(
        hidden_size=1024, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128, intermediate_size=3072,
        tie_word_embeddings=True, **SHARED)),
    "tiny, 2 layers": (Qwen3MoeForCausalLM, Qwen3MoeConfig(
        hidden_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=64, intermediate_size=512,
        num_experts=8, num_experts_per_tok=2, moe_intermediate_size=128, norm_topk_prob=True, tie_word_embeddings=True, **SHARED)),
}
NEAR = 0.25  # two logits nearer than this many standard deviations are a near tie
ROOT = pathlib.Path(__file__).resolve().parent.parent


def make(cls, config, seed):
    """A model whose logits are spread out: norms near 1, matrices that keep the size of what they multiply."""
    torch.manual_seed(seed)
    with torch.device("cuda"):
        model = cls(config).to(torch.bfloat16).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 1:
                p.copy_(1 + 0.1 * torch.randn_like(p))
            else:
                p.copy_(torch.randn_like(p) * (1.0 if "embed" in name else p.shape[-1] ** -0.5))
    return model


def logits(model, prompts):
    rows = [None] * len(prompts)
    for length in LENGTHS:
        at = [i for i, p in enumerate(prompts) if len(p) == length]
        for lo in range(0, len(at), 25):
            some = at[lo:lo + 25]
            with torch.no_grad():
                out = model(torch.tensor([prompts[i] for i in some], device="cuda"), logits_to_keep=1).logits[:, -1]
            for i, row in zip(some, out.float().cpu().numpy()):
                rows[i] = row
    return numpy.stack(rows)


def ours(folder, prompts):
    (folder / "prompts.json").write_text(json.dumps(prompts))
    env = dict(os.environ, LARDER_REQUIRE_CUDA="1", LARDER_CHECKPOINT=str(folder), LARDER_PROMPTS=str(folder / "prompts.json"),
               LARDER_LOGITS=str(folder / "logits"))
    binary = os.environ.get("LARDER_CUDA_TEST", str(ROOT / ".bin" / "cuda.test"))
    done = subprocess.run([binary, "-test.run", "TestCheckpointLogits", "-test.v"], env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    print("  " + next(line for line in done.stdout.splitlines() if "GB/s" in line).split(": ", 1)[1])
    return numpy.fromfile(folder / "logits", numpy.float32).reshape(len(prompts), -1)


def compare(name, truth, got, spread):
    """Distances in deviations, agreement, and the gaps of the tokens that differ."""
    off = numpy.abs(got - truth).max(1) / spread
    rms = numpy.sqrt(((got - truth) ** 2).mean(1)) / spread
    best = truth.argmax(1)
    other = got.argmax(1)
    rows = numpy.arange(len(truth))
    gaps = ((truth[rows, best] - truth[rows, other]) / spread)[best != other]
    far = int((gaps > NEAR).sum())
    print(f"  {name:20s} rms {numpy.median(rms):.4f} (99 %: {numpy.quantile(rms, .99):.4f}), largest {numpy.median(off):.3f} "
          f"(99 %: {numpy.quantile(off, .99):.3f}); same token {int((best == other).sum())} of {len(truth)}, "
          f"largest gap of another {gaps.max() if len(gaps) else 0:.3f}, {far} beyond a near tie")
    return numpy.median(rms), far


def check(name, cls, config, folder, seed):
    print(f"{name}: {PROMPTS} prompts of {', '.join(map(str, LENGTHS))} tokens", flush=True)
    rng = numpy.random.default_rng(seed)
    prompts = [rng.integers(0, config.vocab_size, LENGTHS[i % len(LENGTHS)]).tolist() for i in range(PROMPTS)]
    model = make(cls, config, seed)
    model.save_pretrained(folder)
    half = logits(model, prompts)
    truth = logits(model.float(), prompts)
    del model
    torch.cuda.empty_cache()
    mine = ours(folder, prompts)
    spread = truth.std(1)
    theirs, their_far = compare("transformers, bf16", truth, half, spread)
    us, far = compare("larder", truth, mine, spread)
    agree = int((mine.argmax(1) == half.argmax(1)).sum())
    print(f"  larder and transformers in bf16 pick the same token {agree} times of {PROMPTS}", flush=True)
    return us <= 1.5 * theirs and far <= their_far


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}")
    base = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "out/checkpoints")
    good = True
    for seed, (name, (cls, config)) in enumerate(MODELS.items()):
        folder = base / str(seed)
        folder.mkdir(parents=True, exist_ok=True)
        good &= check(name, cls, config, folder, seed)
    sys.exit(0 if good else "larder is farther from float32 than transformers' own bf16, or picked a token that is no near tie")


main()
