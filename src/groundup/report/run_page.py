"""The report of runs: one page with their curves, scores, samples, settings, data and checkpoints."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import orjson

from groundup.core.config import to_dict
from groundup.core.config_sources import leaves
from groundup.core.files import atomic_write, write_json
from groundup.core.log import logger
from groundup.core.progress import human_count, human_seconds
from groundup.report import run_sections
from groundup.report.page import Drawing, Section, packaged, page, table, text, tiles
from groundup.report.provenance import provenance
from groundup.report.run_plots import (
    Event,
    Plot,
    controls,
    events_of,
    figure_plots,
    loss_plot,
    machine_plots,
    plot_data,
    plot_html,
    score_plots,
    short,
)
from groundup.report.run_records import ORIGINS_FILE, RunRecords, names_of, number, read_run
from groundup.train.config import TrainConfig

REPORT = "report.html"


def write_run_page(folders: Sequence[Path], output: Path, *, reads_checkpoints: bool = False) -> Path:
    """Writes the page of one or several runs; returns where.

    Args:
        folders: Run folders.
        output: The HTML file.
        reads_checkpoints: Compare every byte of the checkpoints with their checksums.

    Raises:
        DataError: One of them is no run.
    """
    runs = [read_run(folder, name) for folder, name in zip(folders, names_of(folders), strict=True)]
    markup = run_page(runs, reads_checkpoints=reads_checkpoints)
    with atomic_write(output) as file:
        file.write(markup.encode())
    return output


def write_report_of_training(config: TrainConfig, origins: Mapping[str, str]) -> None:
    """Writes ``report.html`` of a run that trains or has trained; what goes wrong is logged, and no more.

    Args:
        config: Of the run.
        origins: Dotted key -> where its value comes from; kept in the folder for later reports.
    """
    began = time.perf_counter()
    try:
        if origins:
            kept = {key: [str(value), origins.get(key, "default")] for key, value in leaves(to_dict(config))}
            write_json(config.run_dir / ORIGINS_FILE, kept)
        path = write_run_page([config.run_dir], config.run_dir / REPORT)
    except Exception as error:  # no page is worth a run
        logger.warning("the report of the run could not be written (%s: %s)", type(error).__name__, error)
        return
    logger.info("report: %s (%.1fs)", path, time.perf_counter() - began)


def run_page(runs: Sequence[RunRecords], *, reads_checkpoints: bool = False) -> str:
    """The page of one or several runs; see ``write_run_page``."""
    differ = _vocabularies_differ(runs)
    per_byte = differ and all(run.bits_per_nat for run in runs)
    learning = [loss_plot(runs, per_byte=per_byte), *figure_plots(runs), *machine_plots(runs)]
    learning = [plot for plot in learning if plot.curves]
    scores = list(score_plots(runs))
    events = sorted(
        (event for place, run in enumerate(runs) for event in events_of(place, run)), key=lambda one: one.step
    )
    sections = [
        Section("Curves", _curves(learning, 0, runs), _note(runs, differ=differ, per_byte=per_byte)),
        Section("Restarts and spikes", run_sections.events(events, runs)),
        Section("Evaluation", run_sections.scores(runs) + _plots(scores, len(learning), runs)),
        *run_sections.samples(runs),
        Section("Settings", run_sections.settings(runs)),
        Section("Data", _data(runs), "What the run trained on, and what that was made of."),
        Section("Checkpoints", run_sections.checkpoints(runs, reads_all=reads_checkpoints)),
    ]
    library = f"{packaged('uplot/uPlot.iife.min.js')}\n/*\n{packaged('uplot/LICENSE')}*/\n"
    drawing = Drawing(
        style=packaged("uplot/uPlot.min.css") + "\n" + packaged("run_page.css"),
        scripts=[library, packaged("run_page.js")],
        figures=orjson.dumps(plot_data([*learning, *scores], runs, events)).decode(),
    )
    title = " and ".join(run.name for run in runs) if len(runs) < 3 else f"{len(runs)} runs"
    if len(runs) > 1:
        sections.insert(0, Section("Runs", _side_by_side(runs, events)))
        return page(title, "run report", "", sections, drawing)
    return page(title, "run report", _figures(runs[0], events), sections, drawing)


def _curves(plots: Sequence[Plot], first: int, runs: Sequence[RunRecords]) -> str:
    if not plots:
        return (
            "<p>There are no metrics yet: <code>metrics.jsonl</code> of the run is missing or empty. It is"
            " written every <code>log.interval</code> steps.</p>"
        )
    return controls() + _plots(plots, first, runs)


def _plots(plots: Sequence[Plot], first: int, runs: Sequence[RunRecords]) -> str:
    drawn = "".join(plot_html(plot, first + at, runs) for at, plot in enumerate(plots))
    return f'<div class="plots">{drawn}</div>' if plots else ""


def _note(runs: Sequence[RunRecords], *, differ: bool, per_byte: bool) -> str:
    note = (
        "Upright dashed lines are restarts and spikes, named below. Hours are those of training, without"
        " validations, saving and work that was lost. Drag over a plot to look closer, click twice for all."
    )
    if per_byte:
        note += (
            " The vocabularies of these runs differ, and so do their losses a token: losses are shown in bits"
            " per byte, by the bytes a token of each run's validation."
        )
    elif differ:
        unknown = [run.name for run in runs if not run.bits_per_nat]
        note += (
            " The vocabularies of these runs differ, so their losses cannot be compared; bits per byte could,"
            f" but {', '.join(unknown)} was not validated."
        )
    return note


def _vocabularies_differ(runs: Sequence[RunRecords]) -> bool:
    sizes = {run.config.get("model.vocab_size") for run in runs} - {None}
    return len(sizes) > 1 or len({run.tokenizer for run in runs} - {""}) > 1


def _state(run: RunRecords) -> str:
    planned = number(run.config.get("num_steps"))
    if not run.last_step:
        return "no step is recorded"
    if planned is None:
        return "its length is not known"
    if run.last_step >= planned:
        return "finished"
    return f"{run.last_step / planned:.0%} of {planned:,.0f}: stopped, or still training"


def _last(run: RunRecords, kind: str, name: str) -> float | None:
    values = [number(record.get(name)) for record in run.kinds.get(kind, ())]
    return next((value for value in reversed(values) if value is not None), None)


def _facts(run: RunRecords, events: Sequence[Event]) -> Iterator[tuple[str, str, str]]:
    end = run.place(run.last_step)
    yield "steps", f"{run.last_step:,}", _state(run)
    yield "tokens", human_count(end.tokens), "trained on"
    yield "loss", short(_last(run, "train", "loss")) or "none", "the last, in training"
    held_out = [
        value for one in run.kinds.get("validation", ()) if (value := number(one.get("loss"))) is not None
    ]
    bits = _last(run, "validation", "bits_per_byte")
    said = f"the last; the best {min(held_out):.4g}" if held_out else "was not measured"
    said += f"; {bits:.4f} bits per byte" if bits else ""
    yield "validation loss", short(_last(run, "validation", "loss")) or "none", said
    yield (
        "training",
        human_seconds(3600 * end.hours),
        f"{human_count(end.tokens / (3600 * end.hours or 1))} tokens/s",
    )
    memory = max((number(one.get("memory_bytes")) or 0.0 for one in run.train), default=0.0)
    yield "memory", f"{memory / 1e9:.2f} GB", "at its peak, of the first rank"
    counts = [sum(event.kind == kind for event in events) for kind in ("restart", "skip", "rollback")]
    yield "restarts", f"{counts[0]:,}", f"{counts[1]:,} spikes skipped, {counts[2]:,} rolled back"


def _figures(run: RunRecords, events: Sequence[Event]) -> str:
    return tiles(list(_facts(run, events)))


def _side_by_side(runs: Sequence[RunRecords], events: Sequence[Event]) -> str:
    rows = []
    for place, run in enumerate(runs):
        facts = list(_facts(run, [event for event in events if event.run == place]))
        bits = _last(run, "validation", "bits_per_byte")
        cells = [*(text(value) for _, value, _ in facts), f"{bits:.4f}" if bits else "", text(_state(run))]
        rows.append([text(run.name), *cells])
    head = ("run", *(name for name, _, _ in facts), "bits per byte", "state")
    return table("The runs side by side", head, rows)


def _data(runs: Sequence[RunRecords]) -> str:
    parts = []
    for run in runs:
        found = "".join(provenance(run)) or "<p>No config tells what it trained on.</p>"
        parts.append(f"<h3>{text(run.name)}</h3>{found}" if len(runs) > 1 else found)
    start = [run for run in runs if run.config.get("start.path")]
    began = "".join(
        f"<p>{text(run.name)} began with <code>{text(run.config['start.path'])}</code>.</p>" for run in start
    )
    return began + "".join(parts)
