#!/usr/bin/env python3
"""Small tokenizers of three styles, and what Python's `tokenizers` makes of hard strings with them.

    python3 tests/golden/make_tokenizers.py     writes tests/golden/tokenizer_STYLE.json and tokenizer_STYLE.txt

A line of a .txt file: the string's UTF-8 in hexadecimal, a space, and its tokens separated by commas. Written with tokenizers
0.23.3.
"""

import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

FOLDER = pathlib.Path(__file__).resolve().parent
STYLES = ("gpt2", "qwen", "llama3")
NEWER = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

CORPUS = """The quick brown fox jumps over the lazy dog, and the dog doesn't mind; it's what they've agreed, we'll see.
Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Les élèves à l'école n'ont rien à déclarer, ça va.
Съешь же ещё этих мягких французских булок, да выпей чаю. Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.
中文的句子没有空格,所以分词不容易。日本語の文章も同じです。한국어 문장에는 띄어쓰기가 있다.
मनुष्य जन्म से स्वतंत्र हैं। عربي يكتب من اليمين إلى اليسار. עברית נכתבת מימין לשמאל. ภาษาไทยไม่มีช่องว่าง
int main(void)\\n{\\n    for (int i = 0; i < 1000; i++)\\n        printf("%d", i * 12345);\\n    return 0;\\n}
1234567890 3.14159 2024-05-20 10:30:00 1,000,000 0x1F600 😀😀👍 family 👨‍👩‍👧‍👦 cafe\u0301 naïve\\t\\ttabs\\r\\nCRLF   spaces
""".replace("\\n", "\n    ").replace("\\t", "\t").replace("\\r", "\r").split("\n")

STRINGS = [
    "", " ", "  ", "   a", "a ", "a  ", "a   b", "\n", "\n\n", " \n ", "\t", "\ta", "a\tb", "\r\n", "a\r\nb\r\n", "\n\n\na",
    " \r\n\t x", "a \n b", "...\n\n", "!?\r\nx", "hello world", "Hello, World!", " leading", "trailing ", "it's", "IT'S", "we'LL",
    "'s", "'S", "''s", "'\u017fa", "they've'd'm're't", "don't 'tis 'llama", "1", "12", "123", "1234", "1234567", "a1b22c333d4444",
    "3.14159", " 12", "½²₃Ⅻ一二三", "१२३४५", "é", "e\u0301", "e\u0301\u0302", "a\u0323\u0307", "a\u0307\u0323", "\u0301abc", "\u1e9b\u0323",
    "\u212b\u2126", "\uac00\u1100\u1161\u11a8", "\u1112\u1161\u11ab\u1100\u1173\u11af", "\u0958\u0f73\u0344", "ﬁﬀ",
    "中文的句子", "日本語の文章です。", "한국어 문장", "עברית עם נִקּוּד", "عربي مُشَكَّل", "मनुष्य जन्म", "ภาษาไทยไม่มี", "ქართული Հայերեն አማርኛ",
    "😀", "👍🏽", "👨‍👩‍👧‍👦 family", "🇩🇪🇫🇷", "a😀b 😀 c", "\u200b\u200d\ufeff", "\u00a0\u2003\u3000x", "\u2028\u2029\u0085y", "x\u00a0",
    "x\u3000\u3000y", "\x00\x01\x7f", "\ud7ff\ue000\ufffd\U0010ffff", "___---===", "a_b-c", "#include <stdio.h>", "if (x == 0) {\n    y++;\n}\n",
    "http://example.org/?q=a%20b&c", "ǅungla ʰ ˈ ªº", "\u0300\u0300\u0300", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "the the the the", "<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|>", "<|endoftext", "a <tool> b", "a<tool>b", "<tool>",
    " <left> x", "\n\t<left>x", "x<right> \n y", "<word>", "a<word>", "a <word> b", "<word>é", "<word>.", "caf\u00e9t", "cafe\u0301t ok",
    " caf\u00e9", "<|im_start|>user\nhi<|im_end|>\n", "<tool><tools><tool", "  <left>  <right>  ", "<|endoftext|> a", " <|endoftext|>",
    "a xyzzy xyzzyxyzzy",
]


def tokenizer(style):
    bpe = Tokenizer(models.BPE(ignore_merges=style == "llama3"))
    if style == "gpt2":
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    else:
        pattern = NEWER % (r"\p{N}" if style == "qwen" else r"\p{N}{1,3}")
        split = pre_tokenizers.Split(Regex(pattern), "isolated", invert=False)
        bpe.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if style == "qwen":
        bpe.normalizer = normalizers.NFC()
    bpe.decoder = decoders.ByteLevel()
    bpe.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(CORPUS * 2, trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False))
    if style == "llama3":
        data = json.loads(bpe.to_str())
        data["model"]["vocab"]["Ġxyzzy"] = 700  # a word that no merges make
        bpe = Tokenizer.from_str(json.dumps(data))
    bpe.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    bpe.add_tokens(
        [
            AddedToken("<tool>", normalized=False),
            AddedToken("<tools>", normalized=False),
            AddedToken("<left>", lstrip=True, normalized=False),
            AddedToken("<right>", rstrip=True, normalized=False),
            AddedToken("<word>", single_word=True, normalized=False),
            AddedToken("caf\u00e9", normalized=True),
        ]
    )
    if style == "llama3":
        first = bpe.token_to_id("<|im_start|>")
        template = processors.TemplateProcessing(
            single="<|im_start|> $A", pair="<|im_start|> $A $B", special_tokens=[("<|im_start|>", first)]
        )
        bpe.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return bpe


def file_of(style, text):
    """The file, with merges written the older way for one style."""
    data = json.loads(text)
    if style == "gpt2":
        data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n"


def strings():
    random.seed(1)
    mixed = ["".join(random.choice(STRINGS) for _ in range(random.randrange(2, 5))) for _ in range(120)]
    return STRINGS + CORPUS + mixed


def main():
    for style in STYLES:
        text = file_of(style, tokenizer(style).to_str())
        (FOLDER / f"tokenizer_{style}.json").write_text(text, encoding="utf-8")
        known = Tokenizer.from_str(text)
        lines = [f"{s.encode().hex()} {','.join(map(str, known.encode(s).ids))}\n" for s in strings()]
        (FOLDER / f"tokenizer_{style}.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
