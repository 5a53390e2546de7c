#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small tokenizers of the supported kinds and what the Hugging Face library makes of some texts: tests/vectors/tokenizer/<name>.json and <name>.jsonl.

    pip install tokenizers==0.22.2
    tools/make_tokenizer_vectors.py tests/vectors/tokenizer

Each line of a .jsonl holds text, ids, ids_special (with what add_bos puts in front) and decoded (special tokens skipped). Later versions of the library
decode an added token whose `normalized` is true to its normalised content; 0.22.2 gives the content itself, and so do we.
"""
import json
import random
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SEED = 7
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN35 = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + TAIL
LLAMA3 = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (r"[^\r\n\p{L}\p{N}]?%s*%s+|[^\r\n\p{L}\p{N}]?%s+%s*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" % (UPPER, LOWER, UPPER, LOWER)) + TAIL

CORPUS = [
    "The quick brown fox jumps over the lazy dog. She sells sea shells by the sea shore; it's what they've always done, isn't it?",
    "def merge(left, right):\n    while left and right:\n        yield left.pop(0) if left[0] < right[0] else right.pop(0)\n\n\nclass A:\n\tpass\n",
    "for (int i = 0; i < n; ++i) {\r\n    a[i] += b[i] * c;\r\n}\r\n// done: 3.14159, 1234567890\n",
    "Die Größe der Bäume überraschte alle. Où est l'été? El niño comió piña.",
    "Привет, мир! Как дела? 你好，世界。今天天气很好。こんにちは世界 안녕하세요 세계",
    "नमस्ते दुनिया สวัสดีชาวโลก مَرْحَبًا بِالعالَم",
    '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}',
]
TEXTS = [
    "", " ", "  ", "\n", "\n\n\n", "\t\tx", "Hello world", "Hello  world ", " leading", "trailing   ", "a  b", " \n\n x", "a  \n\n  b",
    "I'm you're we've they'll he'd IT'S DON'T it\u2019s we'\u017fx 'sx 'Sx _'sx", "x = 1234567; y = 3.14e-10", "\r\n\r\n\tx\r\n", "1\n\n",
    "Größe e\u0301 u\u0308 q\u0323\u0307 q\u0307\u0323 \u212b \u1100\u1161\u11a8",
    "\u0958 \u0929\u093c नमस्ते สวัสดี مَرْحَبًا", "你好，世界。 안녕",
    "\U0001F468\u200d\U0001F469\u200d\U0001F467 \U0001F44D\U0001F3FD \u2764\ufe0f",
    "\u00a0\u00a0x \u3000y \u2028z \u180e\u200b\ufeffw \u0085v", "\u2581\u2581a \u2581 b", "<0x41><0x0A> <unk>", "<think>\nhm\n</think>\n\n<tool_call>{}</tool_call>",
    "<|im_start|>user\nhi<|im_end|>\n", "a  <|im_end|>x", "<|im_end|>\u0301x", "<|im_", "a<|im_end|", "</s><s>[INST] x [/INST]", "<start_of_turn>user\n<h1>t</h1>",
    "word<W>word <W> x", "a  <L>  b  <R>  c", "\u3135\U00031350\U0001e5d0\u0897", "\U00011935\U00011930 a\u0898\u0301\u0327",
    " " * 64, "\n" * 40, "\t" * 33, "!" * 50, "a" * 300,
    "ab" * 150 + " " + "\u4e2d" * 40, "\u00ff\u0100\u07ff\u0800\uffff\U0010ffff", "null\u0000byte \u007f\u0001", "the the the " * 30,
]


def random_text(rng):
    pools = ["abcdefghij  ETAOIN", " \t\n\r\u00a0", "0123456789.,", "'\"!?#<>|_-", "e\u0301\u0327\u0323aou\u0308", "你好世界한글かな",
             "नमस्तेสวัสดี", "\U0001F600\u200d\u2764\ufe0f", "\u2581 "]
    return "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 60)))


def added(content, **flags):
    return AddedToken(content, **{**dict(normalized=False, special=False), **flags})


def train(pre, special, decoder, size=600, normalizer=None, alphabet=(), **model):
    t = Tokenizer(models.BPE(**model))
    if normalizer:
        t.normalizer = normalizer
    if pre:
        t.pre_tokenizer = pre
    t.decoder = decoder
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=list(alphabet), limit_alphabet=256, show_progress=False)
    t.train_from_iterator(CORPUS, trainer)
    return t


def byte_level(regex, special, normalizer=None, **model):
    pre = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return train(pre, special, decoders.ByteLevel(), normalizer=normalizer, alphabet=pre_tokenizers.ByteLevel.alphabet(), **model)


def with_bos(t, bos):
    t.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, t.token_to_id(bos))])
    return t


def spm(normalizer, decoder, special, pre=None):
    tokens = special + ["<0x%02X>" % b for b in range(256)]
    t = train(pre, tokens, decoder, size=800, normalizer=normalizer, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    j = json.loads(t.to_str())
    j["added_tokens"] = [a for a in j["added_tokens"] if not a["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(j))


def make():
    im = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    markers = [added("<tool_call>"), added("</tool_call>"), added("<think>"), added("</think>")]
    to_bar, bar_to = normalizers.Replace(" ", "\u2581"), decoders.Replace("\u2581", " ")
    bytes_of = [bar_to, decoders.ByteFallback(), decoders.Fuse()]
    out = {}
    t = byte_level(QWEN35, im, normalizer=normalizers.NFC())
    t.add_tokens(markers)
    out["qwen35"] = t
    out["llama3"] = with_bos(byte_level(LLAMA3, ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"], ignore_merges=True), "<|begin_of_text|>")
    out["tekken"] = with_bos(byte_level(TEKKEN, ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"], ignore_merges=True), "<s>")
    pre = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    out["smollm"] = train(pre, im, decoders.ByteLevel(), unk_token="<|endoftext|>", alphabet=pre_tokenizers.ByteLevel.alphabet())
    strip = decoders.Sequence(bytes_of + [decoders.Strip(" ", 1, 0)])
    t = spm(normalizers.Sequence([normalizers.Prepend("\u2581"), to_bar]), strip, ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])
    out["mistral"] = with_bos(t, "<s>")
    t = spm(None, decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")]), ["<unk>", "<s>", "</s>"],
            pre_tokenizers.Metaspace(prepend_scheme="first", split=False))
    out["metaspace"] = with_bos(t, "<s>")
    t = spm(to_bar, decoders.Sequence(bytes_of), ["<pad>", "<eos>", "<bos>", "<unk>"], pre_tokenizers.Split(" ", "merged_with_previous"))
    t.add_special_tokens([added("<start_of_turn>", special=True), added("<end_of_turn>", special=True)])
    t.add_tokens([added(c) for c in ["\n\n", "\n\n\n", "\t\t", "\u2581\u2581", "<h1>", "</h1>", "</s>"]])
    out["gemma"] = with_bos(t, "<bos>")
    t = byte_level(QWEN35, im, normalizer=normalizers.NFC())
    t.add_tokens([added("<W>", single_word=True), added("<L>", lstrip=True), added("<R>", rstrip=True)])
    t.add_tokens([added("e\u0301t", normalized=True), added("sea sh", normalized=True)])
    out["flags"] = t
    return out


def main(folder):
    if tokenizers.__version__ != "0.22.2":
        sys.exit("tokenizers 0.22.2 is wanted, this is " + tokenizers.__version__)
    for name, t in make().items():
        rng = random.Random(SEED)
        text = json.dumps(json.loads(t.to_str()), ensure_ascii=False, separators=(",", ":"))
        t = Tokenizer.from_str(text)
        with open(f"{folder}/{name}.json", "w", encoding="utf-8") as f:
            f.write(text + "\n")
        with open(f"{folder}/{name}.jsonl", "w", encoding="utf-8") as f:
            for s in TEXTS + [random_text(rng) for _ in range(60)]:
                ids = t.encode(s, add_special_tokens=False).ids
                row = {"text": s, "ids": ids, "ids_special": t.encode(s).ids, "decoded": t.decode(ids)}
                f.write(json.dumps(row, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
