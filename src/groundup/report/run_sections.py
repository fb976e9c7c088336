"""The parts of a run's report that are words and tables: scores, samples, settings, checkpoints, events."""

import datetime
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson

from groundup.checkpoint.native.contents import read_checkpoint_manifest
from groundup.checkpoint.native.folder import CHECKPOINTS, find_damage, find_missing, list_checkpoints
from groundup.core.errors import GroundupError
from groundup.report.corpus_page import human_bytes
from groundup.report.page import Section, details, table, text
from groundup.report.run_plots import Event, short
from groundup.report.run_records import Record, RunRecords
from groundup.report.run_scores import run_scores

_COMPLETIONS = "samples.jsonl"
_MOST_SAMPLES = 12
_FEWEST_SAMPLES = 3
"""Of a prompt, where there are many."""
_MOST_CHARACTERS = 4000
_MOST_EVENTS = 200


def score_rows(runs: Sequence[RunRecords]) -> list[list[str]]:
    """The last scores while training, and those of ``groundup eval`` in the run folder."""
    return [
        [
            text(score.task),
            *([text(run.name)] if len(runs) > 1 else []),
            text(score.figure.replace("_", " ")),
            short(score.value),
            short(score.error),
            "" if score.step is None else f"{score.step:,}",
            f"<code>{text(score.file.relative_to(run.folder))}</code>" if score.file else "while training",
        ]
        for run in runs
        for score in run_scores(run)
    ]


def scores(runs: Sequence[RunRecords]) -> str:
    """A table of the scores, or that there are none."""
    rows = score_rows(runs)
    if not rows:
        return (
            "<p>No evaluation is recorded: set <code>eval.every</code> and <code>eval.tasks</code>, or write"
            " the results of <code>groundup eval --out</code> into the run folder.</p>"
        )
    run_column = ("run",) if len(runs) > 1 else ()
    return table("Scores of tasks", ("task", *run_column, "figure", "value", "± s.e.", "step", "from"), rows)


def samples(runs: Sequence[RunRecords]) -> Iterator[Section]:
    """What the model wrote as it learned."""
    for run in runs:
        title = "Samples" if len(runs) == 1 else f"Samples of {run.name}"
        by_prompt: dict[str, list[Record]] = {}
        for record in run.kinds.get("sample", ()):
            by_prompt.setdefault(str(record.get("prompt", "")), []).append(record)
        most = max(_FEWEST_SAMPLES, _MOST_SAMPLES // max(1, len(by_prompt)))
        shown = [
            (record["step"], "", record.get("text", ""))
            for records in by_prompt.values()
            for record in _some(records, most)
        ]
        for record in _completions(run.folder / _COMPLETIONS):
            reward = f"reward {short(record.get('reward'))}"
            shown.append(
                (record.get("step", 0), reward, f"{record.get('prompt', '')}{record.get('completion', '')}")
            )
        quotes = "".join(
            f"<blockquote><cite>step {text(step)}{' · ' if said else ''}{text(said)}</cite>"
            f'<div class="sample">{text(str(words)[:_MOST_CHARACTERS])}</div></blockquote>'
            for step, said, words in shown
        )
        if quotes:
            yield Section(title, quotes)


def events(found: Sequence[Event], runs: Sequence[RunRecords]) -> str:
    """A table of restarts and spikes."""
    if not found:
        return "<p>No restart, skipped step or rollback is recorded.</p>"
    rows = [
        [f"{one.step:,}", *([text(runs[one.run].name)] if len(runs) > 1 else []), one.kind, text(one.what)]
        for one in itertools.islice(found, _MOST_EVENTS)
    ]
    head = ("step", *(("run",) if len(runs) > 1 else ()), "kind", "what")
    more = f"<p>{len(found) - len(rows):,} more.</p>" if len(found) > len(rows) else ""
    return f'<div class="text">{table("Restarts and spikes", head, rows)}</div>{more}'


def settings(runs: Sequence[RunRecords]) -> str:
    """What differs between runs, and every setting of each with its origin."""
    keys = list(dict.fromkeys(key for run in runs for key in run.config))
    parts = []
    if len(runs) > 1:
        differing = [key for key in keys if len({repr(run.config.get(key)) for run in runs}) > 1]
        rows = [[text(key), *(text(run.config.get(key, "")) for run in runs)] for key in differing]
        head = ("setting", *(run.name for run in runs))
        parts.append(
            table("Settings that differ", head, rows) if rows else "<p>All settings are the same.</p>"
        )
    for run in runs:
        rows = [
            [text(key), text(value), text(run.origins.get(key, "not recorded"))]
            for key, value in run.config.items()
        ]
        name = f"All settings of {run.name}" if len(runs) > 1 else "All settings"
        if rows:
            listed = table(name, ("setting", "value", "where from"), rows)
            parts.append(details(f"{name} ({len(rows)})", f'<div class="text">{listed}</div>'))
        else:
            parts.append(f"<p>{text(run.name)} has no config.yaml.</p>")
    return "".join(parts)


def checkpoints(runs: Sequence[RunRecords], *, reads_all: bool) -> str:
    """The checkpoints of each run.

    Args:
        runs: Of the page.
        reads_all: Whether every byte is compared with the checksums, not only which files are there.
    """
    rows = []
    for run in runs:
        for folder in list_checkpoints(run.folder / CHECKPOINTS):
            own = [text(run.name)] if len(runs) > 1 else []
            rows.append(
                [f"<code>{text(folder.name)}</code>", *own, *_checkpoint(folder, reads_all=reads_all)]
            )
    if not rows:
        return "<p>There is no checkpoint.</p>"
    head = ("checkpoint", *(("run",) if len(runs) > 1 else ()), "written", "size", "tokens", "state")
    return table("Checkpoints", head, rows)


def _checkpoint(folder: Path, *, reads_all: bool) -> list[str]:
    written = datetime.datetime.fromtimestamp(folder.stat().st_mtime).isoformat(" ", "minutes")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    tokens, damage = "", None
    try:
        damage = (find_damage if reads_all else find_missing)(folder)
        tokens = f"{read_checkpoint_manifest(folder).counts.tokens:,}"
    except GroundupError as error:
        damage = damage or str(error)
    state = "sound" if reads_all else "complete (contents not read)"
    said = f'<span class="warn">{text(damage)}</span>' if damage else state
    return [written, human_bytes(size), tokens, said]


def _some(records: Sequence[Record], most: int) -> list[Record]:
    if len(records) <= most:
        return list(records)
    return [records[round(at * (len(records) - 1) / (most - 1))] for at in range(most)]


def _completions(path: Path) -> Iterator[Record]:
    """Some lines of a file of completions, evenly from its beginning to its end, without reading the rest."""
    if not path.is_file():
        return
    size, seen = path.stat().st_size, -1
    with path.open("rb") as file:
        for at in range(_MOST_SAMPLES):
            file.seek(max(0, size * at // _MOST_SAMPLES - 1))
            if at:
                file.readline()
            if (begin := file.tell()) == seen or not (line := file.readline()):
                continue
            seen = begin
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError:  # the line that a kill cut short
                continue
            if isinstance(record, dict):
                yield record
