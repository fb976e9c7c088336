"""Undoes the tokenization of WikiText by the steps of Megatron-LM and EleutherAI's harness."""

import re

_MARKS = {" @-@ ": "-", " @,@ ": ",", " @.@ ": "."} | {f" {mark} ": f"{mark} " for mark in ":;.!?,"}
_PAIRS = {
    r"\(\s*([^\)]*?)\s*\)": r"(\1)",
    r"\[\s*([^\]]*?)\s*\]": r"[\1]",
    r"{\s*([^}]*?)\s*}": r"{\1}",
    r"\"\s*([^\"]*?)\s*\"": r'"\1"',
    r"'\s*([^']*?)\s*'": r"'\1'",
}
_REST = {
    "= = = =": "====",
    "= = =": "===",
    "= =": "==",
    " ° ": "°",
    " \n": "\n",
    "\n ": "\n",
    " N ": " 1 ",
    " 's": "'s",
}


def detokenize_wikitext(text: str) -> str:
    """Joins punctuation, numbers, brackets, quotes and headings to what they belong to."""
    text = text.replace("s '", "s'")
    for mark, joined in _MARKS.items():
        text = text.replace(mark, joined)
    for pattern, joined in _PAIRS.items():
        text = re.sub(pattern, joined, text)
    for given, joined in _REST.items():
        text = text.replace(given, joined)
    return text
