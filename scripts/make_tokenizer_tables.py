#!/usr/bin/env python3
"""Make internal/tokenizer/unicode.txt: what Hugging Face's tokenizers library takes each code point for.

    pip install tokenizers                       # made with tokenizers 0.23.3, Python 3.11 or later (Unicode 14)
    python scripts/make_tokenizer_tables.py [output file]

The library's regex engine and its NFC follow different Unicode versions (16 and 9), and neither is the one of Go's
own tables, so the tables are read off the library itself: classes by splitting every code point, NFC by asking for
every combining mark whether it is reordered and for every canonical decomposition whether it is undone and redone.
Code points are hexadecimal. Lines:

    L first last        letters (\\p{L})
    N first last        numbers (\\p{N})
    S first last        white space (\\s)
    M class first last  marks of that combining class
    C whole a b         decomposes into a b, and a b compose into it
    D whole a [b]       decomposes and is never composed
"""

import pathlib
import sys
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
NFC = normalizers.NFC().normalize_str
NFD = normalizers.NFD().normalize_str
HANGUL = range(0xAC00, 0xD7A4)  # composed by arithmetic, not by table


def members(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    for i in range(0, len(POINTS), 4096):
        text = "".join(map(chr, POINTS[i : i + 4096]))
        for word, _ in split.pre_tokenize_str(text):
            yield from map(ord, word)


def ranges(points):
    out = []
    for c in sorted(points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def reordered(c):
    """Whether the library gives c a combining class: it then moves over a mark of another class."""
    mark = chr(c)
    if NFD(mark) != mark:  # its parts are what moves
        return False
    low, high = "\u0334", "\u0345"  # classes 1 and 240
    return NFD("a" + mark + low) != "a" + mark + low or NFD("a" + high + mark) != "a" + high + mark


def marks():
    by_class = {}
    for c in POINTS:
        k = unicodedata.combining(chr(c))
        if k and reordered(c):
            by_class.setdefault(k, []).append(c)
        elif reordered(c):
            raise SystemExit(f"U+{c:04X} is a mark to the library only: its class is unknown")
    return by_class


def decompositions():
    for c in POINTS:
        parts = unicodedata.decomposition(chr(c)).split()
        if c in HANGUL:
            continue
        if not parts or parts[0].startswith("<"):
            if NFD(chr(c)) != chr(c):
                raise SystemExit(f"U+{c:04X} decomposes to the library only")
            continue
        if NFD(chr(c)) == chr(c):
            continue
        parts = [int(p, 16) for p in parts]
        composes = NFC("".join(map(chr, parts))) == chr(c)
        yield "C" if composes else "D", c, parts


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "internal/tokenizer/unicode.txt")
    lines = []
    for name, pattern in (("L", r"\p{L}"), ("N", r"\p{N}"), ("S", r"\s")):
        lines += [f"{name} {a:x} {b:x}" for a, b in ranges(members(pattern))]
    for k, points in sorted(marks().items()):
        lines += [f"M {k:x} {a:x} {b:x}" for a, b in ranges(points)]
    for kind, c, parts in decompositions():
        lines.append(" ".join([kind, f"{c:x}", *(f"{p:x}" for p in parts)]))
    out.write_text("\n".join(lines) + "\n")
    print(out, len(lines), "lines")


if __name__ == "__main__":
    main()
