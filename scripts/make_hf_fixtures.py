#!/usr/bin/env python3
"""Make internal/model/testdata/hf: what Hugging Face transformers computes on small random Qwen3 models.

    pip install torch transformers safetensors numpy    # made with torch 2.15.0, transformers 5.24.0
    python scripts/make_hf_fixtures.py [output folder]

For each config a folder with config.json and model.safetensors (bf16) as save_pretrained writes them, golden.json
(prompts, which positions have logits, greedy continuations) and golden.safetensors (their logits in float32, one row
per position). The reference runs in float32 on the bf16 weights.

Two choices are discrete, the experts and the greedy token. A prompt is kept only if both are clear on its whole path:
router logits of the last chosen and the first refused expert at least ROUTER_GAP apart, and the two best logits at
least TOKEN_GAP, so that rounding alone cannot change them. The least gaps seen are in golden.json.
"""

import json
import pathlib
import shutil
import sys

import numpy
import torch
from safetensors.numpy import save_file
import transformers
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

ROUTER_GAP = 0.12
TOKEN_GAP = 0.25
NEW_TOKENS = 6
LENGTHS = (1, 7, 19, 33)

SHARED = dict(vocab_size=160, max_position_embeddings=256, hidden_act="silu", eos_token_id=[3, 5], bos_token_id=1)
MOE = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True, intermediate_size=64)

CONFIGS = {
    # Eight query heads on one key head; heads * head_dim is twice the hidden size.
    "moe-gqa8": (Qwen3MoeConfig, MOE | dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=1, head_dim=16, rope_theta=1e6)),
    # No grouping, tied, probabilities as they are, sizes that are no multiple of 16.
    "moe-gqa1-tied-nonorm": (Qwen3MoeConfig, MOE | dict(hidden_size=40, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=3, head_dim=10, norm_topk_prob=False, moe_intermediate_size=20, tie_word_embeddings=True)),
    # Dense and sparse layers mixed: 0 and 2 by the step, 3 by name.
    "moe-step2-dense3": (Qwen3MoeConfig, MOE | dict(hidden_size=48, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, decoder_sparse_step=2, mlp_only_layers=[3], num_experts=5,
        num_experts_per_tok=3, moe_intermediate_size=24)),
    "dense-gqa4-tied": (Qwen3Config, dict(hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=1, head_dim=32, intermediate_size=96, tie_word_embeddings=True, rope_theta=1e6)),
    "dense-gqa2": (Qwen3Config, dict(hidden_size=72, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=3, head_dim=8, intermediate_size=104, rms_norm_eps=1e-5)),
}


def build(cls, fields, seed):
    """A model in bf16 with weights that make a spread-out, input-dependent result."""
    fields = dict(SHARED, **fields)
    theta = fields.pop("rope_theta", 10000.0)
    config = cls(**fields, rope_parameters={"rope_type": "default", "rope_theta": theta})
    model = (Qwen3MoeForCausalLM if cls is Qwen3MoeConfig else Qwen3ForCausalLM)(config)
    gen = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            r = torch.randn(p.shape, generator=gen)
            if p.dim() == 1:
                p.copy_(1 + 0.2 * r)
            elif "embed_tokens" in name:
                p.copy_(r * (3 / p.shape[-1] ** 0.5 if config.tie_word_embeddings else 1))
            else:
                gain = 3.0 if "lm_head" in name or name.endswith("mlp.gate.weight") else 1.0
                p.copy_(r * gain / p.shape[-1] ** 0.5)
    return model.to(torch.bfloat16)


class RouterGaps:
    """Watches every router: the distance between the last chosen and the first refused expert's logit."""

    def __init__(self, model):
        self.least = float("inf")
        k = getattr(model.config, "num_experts_per_tok", 0)
        for name, module in model.named_modules():
            if name.endswith("mlp.gate"):
                module.register_forward_hook(lambda m, args, out, k=k: self.see(m, args[0], k))

    def see(self, module, x, k):
        logits = torch.nn.functional.linear(x.reshape(-1, x.shape[-1]), module.weight)
        top = logits.topk(k + 1, dim=-1).values
        self.least = min(self.least, (top[:, k - 1] - top[:, k]).min().item())


def run(model, gaps, prompt):
    """Logits of the prompt's rows, the greedy continuation with its logits, and the least gaps on the way."""
    gaps.least = float("inf")
    ids, rows, token_gap = list(prompt), [], float("inf")
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            logits = model(torch.tensor([ids]), use_cache=False).logits[0]
            whole = logits if not rows else whole
            top = logits[-1].topk(2).values
            token_gap = min(token_gap, (top[0] - top[1]).item())
            if token_gap < TOKEN_GAP or gaps.least < ROUTER_GAP:
                return None
            ids.append(int(logits[-1].argmax()))
            rows.append(logits[-1].numpy())
    return whole.numpy(), ids[len(prompt):], numpy.stack(rows), gaps.least, token_gap


def choose(model, rng, length):
    gaps = RouterGaps(model)
    for _ in range(20000):
        prompt = [int(i) for i in rng.integers(6, model.config.vocab_size, length)]
        result = run(model, gaps, prompt)
        if result is not None:
            return prompt, result
    raise SystemExit(f"no prompt of {length} tokens has clear choices: lower the gaps")


def make(folder, name, cls, fields, seed):
    folder.mkdir(parents=True)
    build(cls, fields, seed).save_pretrained(folder)
    # Read back: converting a model in place would leave its rotary frequencies rounded to bf16.
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").eval()
    (folder / "generation_config.json").unlink(missing_ok=True)
    rng = numpy.random.default_rng(seed)
    golden, tensors = {"cases": []}, {}
    least_router, least_token = float("inf"), float("inf")
    for i, length in enumerate(LENGTHS):
        prompt, (whole, greedy, rows, router, token) = choose(model, rng, length)
        positions = sorted({0, length // 2, length - 1})
        tensors[f"prompt.{i}"] = numpy.ascontiguousarray(whole[positions])
        tensors[f"greedy.{i}"] = rows
        golden["cases"].append({"prompt": prompt, "positions": positions, "greedy": greedy})
        least_router, least_token = min(least_router, router), min(least_token, token)
    golden["least_token_gap"] = round(least_token, 4)
    if numpy.isfinite(least_router):
        golden["least_router_gap"] = round(least_router, 4)
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    save_file(tensors, folder / "golden.safetensors")
    for file in folder.iterdir():
        file.chmod(0o644)
    print(f"{name}: token gap {least_token:.3f}, router gap {least_router:.3f}")


def main():
    default = pathlib.Path(__file__).resolve().parent.parent / "internal" / "model" / "testdata" / "hf"
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    shutil.rmtree(out, ignore_errors=True)
    for seed, (name, (cls, fields)) in enumerate(CONFIGS.items(), start=1):
        make(out / name, name, cls, fields, seed)


if __name__ == "__main__":
    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()
    main()
