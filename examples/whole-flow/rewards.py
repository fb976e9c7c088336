"""A reward for ``stage.reward``: called with the prompt, what the model wrote, and the record."""

import re


def shows_work(prompt, completion, record):
    """The share of the two steps, each a sum such as ``7 + 8 = 15``, that were written and are true."""
    steps = re.findall(r"(\d+(?: \+ \d+)+) = (\d+)", completion)
    true = sum(sum(map(int, terms.split(" + "))) == int(total) for terms, total in steps)
    return min(1.0, true / 2)
