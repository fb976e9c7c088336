"""Merges and ranks: two ways to say which neighbours join, and the proof of when they are the same.

A list of *merges* (GPT-2, ``tokenizers``) joins two neighbours when the pair is in the list; *ranks*
(``tiktoken``, SentencePiece's BPE) join them when their joined text is a token. Both take the lowest
rank first, of equal ones the leftmost.

Joining by ranks, let neighbours x and y with x + y = t meet in some text. Until then nothing joined
across t's two borders, so within them the same happened as when t is encoded alone: that passes through
x, y too, and as no more than two pieces are left there, x, y is the *last pair* of t. So a token is made
from its last pair or not at all, whatever stands around it. Hence joining by ranks is joining by the
merges that are the tokens' last pairs, in the order of the ranks.
"""

import itertools
from collections.abc import Mapping, Sequence

Merge = tuple[str, str]


def last_pair(token: str, ranks: Mapping[str, int]) -> Merge | None:
    """Returns the last two pieces that join to a token when it is encoded alone; None where more are left.

    Args:
        token: Two letters or more.
        ranks: Token -> rank.
    """
    pieces = list(token)
    while len(pieces) > 2:
        best = None
        for place in range(len(pieces) - 1):
            rank = ranks.get(pieces[place] + pieces[place + 1])
            if rank is not None and (best is None or rank < best):
                best, at = rank, place
        if best is None:
            return None
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return pieces[0], pieces[1]


def merges_of(ranks: Mapping[str, int]) -> list[Merge]:
    """Returns the merges that are equivalent to ranks; tokens that no join yields have none.

    Args:
        ranks: Token -> rank, all different; tokens of one letter are never made.
    """
    in_order = sorted((token for token in ranks if len(token) > 1), key=ranks.__getitem__)
    pairs = (last_pair(token, ranks) for token in in_order)
    return [pair for pair in pairs if pair is not None and pair[0] in ranks and pair[1] in ranks]


def ranked_merges(merges: Sequence[Merge], letters: Sequence[str]) -> list[Merge]:
    """Returns the merges without those for which ranks in their order could give other ids.

    Kept is a merge that is its token's last pair by the ranks kept so far: later ranks change nothing in
    that, since a lower one is there to be joined at each step.

    Args:
        merges: First the one that joins first.
        letters: The tokens that no merge makes.
    """
    ranks = dict.fromkeys(letters, -1)
    kept = []
    for number, (left, right) in enumerate(merges):
        token = left + right
        if token in ranks or left not in ranks or right not in ranks:
            continue
        if last_pair(token, ranks) == (left, right):
            ranks[token] = number
            kept.append((left, right))
    return kept


def merges_as_ranks(merges: Sequence[Merge], letters: Sequence[str]) -> list[Merge] | None:
    """Returns the merges of a list that ever apply, if ranks in their order give the same ids; else None.

    Some files list every cut of a token in two (Hugging Face's conversions of tiktoken's ranks do). Of
    these only the last pair by the ranks ever meets, so all is well if the list has it for each token
    that has one, and has the last pairs in the order of the ranks. Tokens without one are never made.

    Args:
        merges: First the one that joins first.
        letters: The tokens that no merge makes.
    """
    ranks = dict.fromkeys(letters, -1)
    places: dict[Merge, int] = {}
    for number, merge in enumerate(merges):
        ranks.setdefault(merge[0] + merge[1], number)
        places[merge] = number  # of a merge listed twice, ``tokenizers`` takes the last
    kept = merges_of(ranks)
    numbers = [-1, *(places.get(merge, -1) for merge in kept)]
    return kept if all(first < second for first, second in itertools.pairwise(numbers)) else None
