"""A tokenizer of letters: id 0 is ``a``, the last id is the special token ``<end>``, which ends a reply."""

from __future__ import annotations

from string import ascii_lowercase

from tokenizers import AddedToken, Tokenizer, decoders, models

from edgeprec.runtime.tokenizer import TextTokenizer

END = "<end>"
CHAT_TEMPLATE = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}z{% endfor %}a"


def letters(vocab_size: int = 27, *, chat_template: str | None = CHAT_TEMPLATE) -> TextTokenizer:
    """Return a tokenizer of ``vocab_size`` ids, one letter each."""
    vocab = {letter: index for index, letter in enumerate(ascii_lowercase[: vocab_size - 1])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    return TextTokenizer(
        tokenizer=tokenizer,
        chat_template=chat_template,
        eos_token_ids=frozenset({vocab_size - 1}),
        adds_bos=False,
        bos_token_id=None,
        bos_token="",
        eos_token=END,
    )
