"""Supervised fine-tuning: what an assistant says in conversations is learned, given what was said before."""

from collections.abc import Mapping
from typing import Any, Literal

from groundup.checkpoint.lazy import LazyModel
from groundup.core.config import config
from groundup.core.config_class import NotNegative, PositiveFloat
from groundup.core.log import quiet
from groundup.finetune.chat_split import ChatSplit
from groundup.finetune.chats import RecordFields
from groundup.finetune.record_data import (
    ConfigT,
    open_stored,
    record_data,
    record_defaults,
    require_records,
    show_examples,
    with_steps,
)
from groundup.finetune.templates import with_template
from groundup.finetune.tokenized_chats import ChatFormat
from groundup.train.config import TrainConfig
from groundup.train.learning import Learning
from groundup.train.run_data import RunData
from groundup.train.setup import Run


@config
class Sft:
    """Supervised fine-tuning on conversations.

    Attributes:
        template: "own" for the model's chat template; plain, chatml or llama3, whose special tokens are added
            where the model has none of them; text, which has none, and so is for adapters; or a file in
            Jinja's language. "" takes the model's own, and plain where it has none.
        fields: Names of fields in a record, where its form is not recognised.
        answers: Which of the assistant's turns are learned: all, or the last of each conversation.
        epochs: Passes over the conversations, where num_steps is not given.
        examples: Conversations that are shown before the first step, what is learned of them in brackets.
    """

    kind: Literal["sft"] = "sft"
    template: str = ""
    fields: RecordFields = RecordFields()
    answers: Literal["all", "last"] = "all"
    epochs: PositiveFloat = 3.0
    examples: NotNegative = 3

    @staticmethod
    def defaults(tree: Mapping[str, Any]) -> dict[str, Any]:
        """Returns settings of the run that this stage has another default for."""
        return record_defaults(tree, Sft.kind) | {"optimizer": {"kind": "adamw", "lr": 2e-5}}

    def completed(self, run: ConfigT) -> ConfigT:
        """Returns the config with what model and data decide: the vocabulary, and the number of steps."""
        require_records(run, self.kind)
        with quiet():
            stored = self._start(run)
        return with_steps(run, stored, lambda run: self._open(run, stored), epochs=self.epochs)

    def learning(self, run: TrainConfig) -> Learning:
        """Returns what the training loop is given."""
        require_records(run, self.kind)
        return Learning(
            open_data=lambda _: self._opened(run),
            change_start=lambda stored: with_template(stored, self.template),
            begin=lambda present: show_examples(present, self.examples),
            encode_prompt=encode_question,
        )

    def _start(self, run: TrainConfig) -> LazyModel:
        return with_template(open_stored(run), self.template)

    def _opened(self, run: TrainConfig) -> RunData:
        with quiet():  # what is said of the model is said where the run begins with it
            stored = self._start(run)
        return self._open(run, stored)

    def _open(self, run: TrainConfig, stored: LazyModel) -> RunData:
        """Opens the conversations of a run.

        Raises:
            DataError: They cannot be read, or none is left for training.
        """
        from groundup.inference.chat_template import read_chat_template

        tokenizer = stored.tokenizer
        template = read_chat_template(stored.companions, tokenizer.special_tokens)
        assert template is not None, "the model was given one"
        how = ChatFormat(
            tokenizer=tokenizer,
            template=template,
            template_source=stored.companions.chat_template or "",
            fields=self.fields,
            last_answer_only=self.answers == "last",
            max_tokens=run.data.sequence_length + 1,
        )
        return record_data(run, how, ChatSplit)


def encode_question(run: Run, text: str) -> list[int]:
    """Returns a user's question as ids, up to where the answer begins."""
    from groundup.inference.chat_template import read_chat_template

    template = read_chat_template(run.state.companions, run.tokenizer.special_tokens)
    assert template is not None, "the run began with one"
    ids: list[int] = []
    for part in template.render([{"role": "user", "content": text}]):
        ids += [part] if isinstance(part, int) else run.tokenizer.encode(part)
    return ids
