"""The part of a model card that says what the model is not, each sentence from a record or its absence."""

from collections.abc import Iterator, Sequence

from groundup.checkpoint.lazy import LazyModel
from groundup.models.count import num_parameters
from groundup.report.card_data import corpora_of, languages_of, names_of_stage, was_searched
from groundup.report.card_stages import CardStage
from groundup.report.data_sources import filters_of
from groundup.report.run_records import number


def limits(stored: LazyModel, stages: Sequence[CardStage], languages: Sequence[str]) -> Iterator[str]:
    """Sentences about what should not be expected of a model."""
    context = stored.config.max_sequence_length
    yield f"It sees at most {context:,} tokens at once, prompt and answer together."
    unknown = [names_of_stage(stage) for stage in stages if not languages_of(corpora_of(stage))]
    if languages:
        rest = f"; of {' and of '.join(filter(None, unknown))} no record tells" if any(unknown) else ""
        yield f"The languages of its data are {', '.join(languages)}{rest}. Do not expect others of it."
    else:
        yield "The languages of its data are not recorded."
    if stages and not stages[0].base:
        tokens, size = stages[0].end.tokens, num_parameters(stored.config)
        yield (
            f"It was pretrained on {tokens:,.0f} tokens, {tokens / size:.3g} for each of its {size:,}"
            " parameters; of a given amount of computing, about 20 make the most (Hoffmann et al. 2022)."
        )
    for stage in stages:
        planned = number(stage.run.config.get("num_steps"))
        if planned and stage.step < planned:
            yield f"{stage.title} was not finished: step {stage.step:,} of {planned:,.0f}."
    yield _alignment(stages)
    yield from _of_data(stages)
    yield "What it says may be false, offensive, or copied from its data."


def _alignment(stages: Sequence[CardStage]) -> str:
    kinds = {stage.kind for stage in stages}
    if not kinds:
        return "Whether it was tuned on instructions or preferences is not known here."
    if stages[0].base:
        return "Only the stages above are known here: what was done to the model that it began with is not."
    if not kinds & {"sft", "dpo", "grpo"}:
        return "It was tuned neither on instructions nor on preferences: it continues texts, no more."
    if not kinds & {"dpo", "grpo"}:
        return "It was tuned on conversations, not on preferences or rewards. Nothing was done for safety."
    return "It was tuned on the preferences or rewards named above; nothing else was done for safety."


def _of_data(stages: Sequence[CardStage]) -> Iterator[str]:
    corpora = [manifest for stage in stages for manifest in corpora_of(stage)]
    if corpora and not all(was_searched(stage) for stage in stages if corpora_of(stage)):
        yield (
            "Evaluation items were not searched for in all of its data: scores of such tasks may flatter it."
        )
    if not corpora and stages:
        yield "What was filtered from its data, and whether evaluation items stand in it, is not recorded."
    filters = {
        name
        for manifest in corpora
        for at in range(len(manifest.counts.stages))
        for name in filters_of(manifest, at).split(", ")
    }
    if corpora and "mask_pii" not in filters:
        yield "Personal data were not masked in its corpus."
    if stages:
        yield "The licences of its data are not recorded."
