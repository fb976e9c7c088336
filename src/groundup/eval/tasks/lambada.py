"""LAMBADA: the last word of a passage (Paperno et al. 2016, arXiv:1606.06031), in every published form.

- strict: each token of the word is the most probable one (Megatron-LM's ``--strict-lambada``, lm-eval);
- the last *token* alone, given those before it (Megatron-LM's default, taken for GPT-2's);
- strict, with stop words left out of the choice of the first token (Radford et al. 2019, section 3.3);
- the perplexity of the word, and of its last token.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from groundup.checkpoint.lazy import LoadedModel
from groundup.core.config_class import NotNegative, config
from groundup.core.errors import DataError
from groundup.corpus.bad_records import BadRecordPolicy, BadRecords
from groundup.corpus.read_documents import read_documents
from groundup.eval.detokenize import detokenize_wikitext
from groundup.eval.scoring import Score
from groundup.eval.tasks.evaluation_task import (
    EvaluationTask,
    Figure,
    Item,
    Results,
    scorable,
    score_items,
    summarise,
)
from groundup.eval.text_requests import text_request
from groundup.tokens.tokenizer.base import Tokenizer

_STOP_WORDS = frozenset(
    """
    i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers
    herself it its itself they them their theirs themselves what which who whom this that these those am is
    are was were be been being have has had having do does did doing a an the and but if or because as until
    while of at by for with about against between into through during before after above below to from up
    down in out on off over under again further then once here there when where why how all any both each few
    more most other some such no nor not only own same so than too very can will just don should now
    """.split()  # noqa: SIM905  # the English list of NLTK
)


@config
class Lambada(EvaluationTask):
    """Measures how often and how surely the last word of each passage is predicted.

    Attributes:
        text_key: The JSON field that holds the passage.
        detokenize: "wikitext" undoes the tokenization of the original file as Megatron-LM does for WikiText;
            OpenAI's file needs none, and Megatron-LM does none to it.
        batch_size: Passages at a time; 0 for as many as are fast and fit into memory. Changes no result.
        limit: Read only the first so many passages; 0 for all.
    """

    figures: ClassVar = {
        "accuracy": Figure(unit="strict", better="higher"),
        "accuracy_last_token": Figure(better="higher"),
        "accuracy_no_stop_words": Figure(unit="strict", better="higher"),
        "perplexity": Figure(unit="of the word", better="lower", exponential=True),
        "perplexity_last_token": Figure(better="lower", exponential=True),
        "right": Figure(unit="strict", better="higher"),
        "passages": Figure(),
    }
    patterns: ClassVar = ("*lambada*test*.jsonl*",)
    reads_folders: ClassVar = True

    kind: Literal["lambada"] = "lambada"
    text_key: str = "text"
    detokenize: Literal["none", "wikitext"] = "none"
    batch_size: NotNegative = 0
    limit: NotNegative = 0

    def measure(self, loaded: LoadedModel, data: Sequence[Path]) -> Results:
        """Returns accuracies, and exp of the mean negative log-probability of a word and of a last token."""
        files = self.find_files(data)
        passages = list(itertools.islice(self._passages(files), self.limit or None))
        if not passages:
            raise DataError(
                "there is no passage in it",
                where=", ".join(map(str, files)),
                fix="Name a file or folder with passages.",
            )
        passages, requests, skipped = scorable(
            passages, lambda passage: [text_request(loaded, *passage[1:], where=passage[0])]
        )
        stop_ids = _ids_of_stop_words(loaded.tokenizer)
        scores = score_items(loaded, requests, batch_size=self.batch_size, banned_ids=stop_ids)
        items = [
            _judge(loaded.tokenizer, *passage, score) for passage, score in zip(passages, scores, strict=True)
        ]
        right = sum(score.is_greedy for score in scores)
        return summarise(items, self.figures, skipped, right=right, passages=len(items))

    def _passages(self, files: Sequence[Path]) -> Iterator[tuple[str, str, str]]:
        """Yields place, context and last word, with the blank before it."""
        strict = BadRecords(BadRecordPolicy(action="fail"), key_setting="lambada.text_key")
        for document in read_documents(files, text_key=self.text_key, bad_records=strict):
            text = detokenize_wikitext(document.text) if self.detokenize == "wikitext" else document.text
            where = str(document.meta.get("origin", document.id))
            context, space, word = text.rstrip().rpartition(" ")
            if not context.strip():
                raise DataError(
                    f"the passage {text[:40]!r} has no context before its last word",
                    where=where,
                    fix="Each passage needs at least two words.",
                )
            yield where, context.rstrip(), space + word


def _judge(tokenizer: Tokenizer, where: str, context: str, word: str, score: Score) -> Item:
    return Item(
        where=where,
        prompt=context,
        prediction=tokenizer.decode(score.choices.tolist()),
        target=word,
        values={
            "accuracy": float(score.is_greedy),
            "accuracy_last_token": float(score.greedy[-1]),
            "accuracy_no_stop_words": float(score.allowed[0] and score.greedy[1:].all()),
            "perplexity": -score.logprob,
            "perplexity_last_token": -float(score.logprobs[-1]),
        },
        scores=[score],
    )


def _ids_of_stop_words(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Returns the ids that spell a stop word behind a blank."""
    words = {f" {word}".encode() for word in _STOP_WORDS}
    spelled = map(tokenizer.token_bytes, range(tokenizer.vocab_size))
    return tuple(number for number, text in enumerate(spelled) if text.lower() in words)
