#!/usr/bin/env python3
"""Make the golden cases of internal/tokenizer: what Hugging Face's tokenizers library makes of several thousand texts.

    pip install tokenizers                       # made with tokenizers 0.23.3
    sh scripts/fetch_tokenizer.sh
    python scripts/make_tokenizer_cases.py [output folder]

Written to internal/tokenizer/testdata:

    tiny/tokenizer.json     a vocabulary of a few hundred tokens, trained here, in the layout of Qwen3's
    tiny.jsonl.gz           cases for it
    qwen3.jsonl.gz          cases for Qwen3's own tokenizer.json, which is not committed

One case a line: {"text", "ids"} for encoding; {"decode", "all", "plain"} for decoding the ids with and without
special tokens; the long runs are {"repeat": [text, times], "ids"}. In both, ids are run-length coded as a flat list of
id, count pairs when "runs" is true.
"""

import gzip
import json
import pathlib
import random
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Regex

SEED = 20260726
QWEN = pathlib.Path("data/tokenizer/tokenizer.json")
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

HAND = [
    "", " ", "  ", "\n", "\r\n", "\r", "\t", "a", " a", "  a", "a ", "a  ", "a\n", "a \n b", "a\n\n\nb", "a \r\n \r\n b",
    "Hello, world!", "The quick brown fox jumps over the lazy dog.", "don't can't I'll we've they're he'd I'm it's",
    "DON'T I'LL WE'VE THEY'RE HE'D I'M IT'S", "'s't're", "'S", "'\u017f", "'\u017fabc", "x'\u017fabc", "it'\u017f a", "'\u017fab", "'llqz", "a\u1c89b", "'\ufb06",
    "'llama 'reason 'very 'term 'state 'day 'mean 'LLAMA", "'sabc 'tabc 'reabc 'Veabc 'lLabc 'dabc 'mabc", "''s", "'' 's", "' s", "'r e", "'l", "'r", "'v", "'", "l'l'll",
    "1234567890", "3.14159", "a1b2c3", "\u0663\u0661\u0664", "\u2167 \u00bd \u3289", "1\u0301",
    "你好，世界！", "今天天气很好。我们去公园吧？", "日本語のテキスト、カタカナ。", "한국어 텍스트입니다.", "\u1112\u1161\u11ab\u1100\u1173\u11af",
    "\uac00\u11a7", "\uac00\u11a8", "\uac01\u11a8", "\u1100\u1161\u11a7", "\u1100\u1161\u11a8\u11a8", "\u1100\u1100\u1161", "\u1161\u11a8",
    "Привет, мир!", "Γειά σου Κόσμε", "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया", "สวัสดีชาวโลก", "გამარჯობა", "Tiếng Việt có dấu",
    "e\u0301", "\u00e9", "a\u0301\u0323", "a\u0323\u0301", "\u0301", "\u0301a", " \u0301", "\u0344", "\u212b", "\u2126", "\u0958", "\u0f43",
    "q\u0307\u0323", "\u1e0b\u0323", "e\u0301\u0301\u0323x\u0327", "s\u0323\u0307", "\u05e9\u05bc\u05c1", "\u0b47\u0b3e", "\ufb1d\ufb2a",
    "\u1100\u0301\u1161", "a" + "\u0301" * 40, "a" + "\u0301\u0323" * 40 + "b", "\u0323" * 35 + "\u0301",
    "\u0085", "a\u0085b", " \u0085 x", "\u0085\n x", "\ufeff", "\ufeffa", "a\ufeffb", " \ufeff ", "\u00a0", "a\u00a0b", "\u3000你", "\u200b",
    "a\u200bb", "\u2028x\u2029y", "\u180e x", "\u1680x", "\u202f\u205f", "\x0b\x0c\x1c\x1d\x1e\x1f\x00", "\x7f",
    "😀", "😀😀", "👨‍👩‍👧‍👦", "👍🏽", "🏳️‍🌈 🇩🇪🇯🇵", "❤️‍🔥", "a😀b", " 😀 ", "\U0001f9d1\u200d\U0001f4bb wrote\tcode",
    "def f(x):\n    return x * 2\n\n\nclass A:\n\tpass\n", "if (a && b || !c) { x->y = z[0]; }", "/* comment */ // another\n#include <stdio.h>\r\n",
    "https://example.com/path?query=1&other=two#frag", "user@example.com", "C:\\Windows\\System32", "a_b_c __init__ --flag -x",
    "{\"key\": [1, 2.5, null, true], \"s\": \"a\\nb\"}", "<div class=\"x\">text</div>", "SELECT * FROM t WHERE a = 'b';",
    "...", "!!!", "?!?!\n\n", " ...\n", " .", "--- ---", "====\r\n\r\n====", "a.b.c", "   \n   \n   x", "x   \n", "\n \n", " \n", "\n ", "\t\t\tx",
    "\tx", "\t!", " \t x", "\u00a0!", "!\u00a0", "\u00a0\u00a0x", "(x)", "((x))", "$x", "x$", "#1", "1#", " 1", "  1", "1 ", " #", "# ",
    "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|><|im_end|>", "<|im_start|", "|im_start|>", "<<|im_start|>>", "<|im_start|><", "<|endoftext|>",
    "<think>\n\n</think>\n\n", "<think", "</think>x", "<tool_call>{\"a\": 1}</tool_call>", "e<|im_end|>\u0301", "<think>\u0301", "a'<think>s",
    "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>", " <|im_end|> ", "\n<|im_end|>\n", "<|IM_END|>", "\uff1c|im_end|>", "\u1100<think>\u1161",
    "\u0130stanbul \u0131 \u00df \u1e9e \u01c5", "\ufb01\ufb02", "\uff21\uff22\uff23", "\U00020000\U0002a6d6", "\ufffd", "\ufffe\uffff", "\U0010ffff",
    "\U00011935\U00011930", "\U00011938", "\u1abf\u0301", "a\u1abf\u0323", "a\u0898\u0334", "\u1c89\ua7cb", "\U0001e4ec\u0334",  # newer than some tables
]

ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789", " \t\n\r", "   ", "\n\r\n", ".,;:!?-_()[]{}<>/\\|\"'`~@#$%^&*+=",
    "'stremvld'STREMVLD\u017f", "\u0301\u0323\u0327\u0308\u0334\u0345\u05bc\u3099\u093c", "aeiouAEIOUçéüñåø", "你好世界我们的人在中国大是有这个上来说时地",
    "，。！？：；「」（）", "ひらがなカタカナプ", "가각힣한국어", "\u1100\u1112\u1161\u1175\u11a7\u11a8\u11c2", "абвгдежзАБВ", "ابتثجحخ", "नमस्ते", "สวัสดี",
    "😀👍🏽👨‍👩‍👧🏳️\u200d\ufe0f", "\u0085\u00a0\ufeff\u200b\u2028\u3000\u180e", "²³¼½Ⅷ①٣", "\x00\x01\x1f\x7f", "\U00020000\U0010ffff\ue000",
]
WORDS = (
    "the of and to in is it that for was on are with as his they at be this from have or by one had not but what all were when we there can an "
    "your which their said if do will each about how up out them then she many some so these would other into has more her two like him see time "
    "could no make than first been its who now people my made over did down only way find use may water long little very after words called just "
    "function return import class struct interface package string int32 float64 error nil true false while async await const static public void "
    "tokenizer throughput latency bandwidth prefill decode cache memory GPU HBM KV attention transformer "
    "我们 今天 中国 因为 所以 但是 如果 可以 没有 什么 世界 人工智能 模型 计算 内存 это как что привет мир здравствуйте "
    "straße naïve café façade Ångström übermäßig señor São İstanbul"
).split()


def special_tokens(tok):
    return [t.content for t in tok.get_added_tokens_decoder().values()]


def fuzz_mixed(rng, specials):
    parts = []
    for _ in range(rng.randint(1, 14)):
        kind = rng.random()
        if kind < 0.45:
            parts.append(rng.choice(WORDS))
            if rng.random() < 0.7:
                parts.append(rng.choice([" ", " ", " ", "\n", "  ", "\t", ", ", ". ", "'s ", "-", "\r\n"]))
        elif kind < 0.93:
            alphabet = rng.choice(ALPHABETS)
            parts.append("".join(rng.choice(alphabet) for _ in range(rng.choice([1, 1, 2, 3, 5, 9]))))
        elif kind < 0.97:
            parts.append(rng.choice(specials))
        else:
            token = rng.choice(specials)
            parts.append(token[: rng.randint(1, len(token))])
    return "".join(parts)


def random_rune(rng):
    while True:
        limit = rng.choice([0x80, 0x800, 0x3000, 0x10000, 0x20000, 0x110000])
        c = rng.randrange(limit)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def fuzz_unicode(rng):
    return "".join(random_rune(rng) for _ in range(rng.randint(1, 24)))


def fuzz_marks(rng):
    """Texts dense in what NFC works on: bases, marks of all blocks, jamo, syllables."""
    blocks = [(0x41, 0x5B), (0xC0, 0x180), (0x300, 0x370), (0x5B0, 0x5C8), (0x900, 0xE00), (0xF40, 0xFC0), (0x1100, 0x1200), (0x1AB0, 0x1AD0),
              (0x1DC0, 0x1E00), (0x1E00, 0x1F00), (0x1F00, 0x2000), (0x20D0, 0x20F1), (0x302A, 0x30FF), (0xAC00, 0xAC40), (0xFB1D, 0xFB50),
              (0x11000, 0x11A00), (0x1D15E, 0x1D1C0), (0xF900, 0xFA00)]
    out = []
    for _ in range(rng.randint(2, 16)):
        out.append(chr(rng.randrange(*rng.choice(blocks))))
    return "".join(out)


LONG = [("a", 5000), (" ", 5000), ("\n", 3000), ("\r\n", 1000), ("ab", 2500), ("你", 3000), ("好的", 1500), ("!", 4000), ("1", 2000), ("e\u0301", 1000),
        ("\u0301", 1000), ("😀", 1000), ("\t", 3000), ("=-", 2000), ("<", 3000), ("<|im_start|", 300), ("<|im_end|>", 300), ("\u1100\u1161\u11a8", 500),
        ("xyzzy", 1500), (" \n", 1000), ("the ", 800), ("AbC", 1000), ("\u00a0", 1500), ("'s", 1000), ("ก็", 800)]


def run_lengths(ids):
    out = []
    for i in ids:
        if out and out[-2] == i:
            out[-1] += 1
        else:
            out += [i, 1]
    return out


def cases(tok, counts):
    rng = random.Random(SEED)
    specials = special_tokens(tok)
    texts = list(HAND)
    texts += [fuzz_mixed(rng, specials) for _ in range(counts["mixed"])]
    texts += [fuzz_unicode(rng) for _ in range(counts["unicode"])]
    texts += [fuzz_marks(rng) for _ in range(counts["marks"])]
    for text in texts:
        yield {"text": text, "ids": tok.encode(text, add_special_tokens=False).ids}
    for text, times in LONG:
        ids = tok.encode(text * times, add_special_tokens=False).ids
        yield {"repeat": [text, times], "runs": True, "ids": run_lengths(ids)}
    size = tok.get_vocab_size()
    for _ in range(counts["decode"]):
        # Half from the start of the vocabulary, where single bytes make broken characters; some that name nothing.
        ids = [rng.choice([rng.randrange(size), rng.randrange(256), rng.randrange(size - 40, size + 3)]) for _ in range(rng.randint(0, 12))]
        yield {"decode": ids, "all": tok.decode(ids, skip_special_tokens=False), "plain": tok.decode(ids, skip_special_tokens=True)}


def train_tiny():
    """A tokenizer of Qwen3's layout over the words above."""
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tok.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    tok.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tok.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    # Words that make details of the pattern visible in ids: 'll and '\u017f are cut off like 's, and U+1C89 (Unicode 16) is a letter.
    details = "\u017fab x\u017fab a\u1c89b xa\u1c89b llqz xllqz " * 40
    trainer = trainers.BpeTrainer(vocab_size=700, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator([" ".join(WORDS * 2), " ".join(HAND), "aaaaaaaa        \n\n\n\n" * 4, "".join(ALPHABETS) * 2, details], trainer)
    for content in ("<|endoftext|>", "<|im_start|>", "<|im_end|>"):
        tok.add_special_tokens([AddedToken(content, special=True, normalized=False)])
    for content in ("<tool_call>", "</tool_call>", "<think>", "</think>", "[a b]", "[a"):
        tok.add_tokens([AddedToken(content, special=False, normalized=False)])
    return tok


def write(path, tok, counts):
    lines = [json.dumps(c, ensure_ascii=True, separators=(",", ":")) for c in cases(tok, counts)]
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), 9, mtime=0))
    print(path, len(lines), "cases,", path.stat().st_size, "bytes")


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "internal/tokenizer/testdata")
    (out / "tiny").mkdir(parents=True, exist_ok=True)
    tiny = train_tiny()
    tiny.save(str(out / "tiny" / "tokenizer.json"), pretty=False)
    write(out / "tiny.jsonl.gz", tiny, dict(mixed=700, unicode=200, marks=500, decode=300))
    write(out / "qwen3.jsonl.gz", Tokenizer.from_file(str(QWEN)), dict(mixed=3000, unicode=800, marks=800, decode=600))


if __name__ == "__main__":
    main()
