"""datatrove's cleaning and MinHash over a folder of .jsonl.zst, run by a Python that has datatrove and spaCy.

The stages are those of datatrove's own example for FineWeb. Prints the seconds of each as JSON; the documents
that are left go to OUT/kept, those dropped by a filter to OUT/excluded/FILTER.

python datatrove_corpus.py LANGUAGE_MODEL WORKERS BANDS ROWS FOLDER OUT
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    model, workers, bands, rows, folder, out = sys.argv[1:]
    os.environ["HF_ASSETS_CACHE"] = f"{out}/assets"  # where the language model is copied to
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline import filters
from datatrove.pipeline.dedup import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter


class _Language(filters.LanguageFilter):
    """With the model from a file: datatrove would download it."""

    def __init__(self, path: str, excluded: JsonlWriter) -> None:
        super().__init__("en", exclusion_writer=excluded)
        self.model.MODEL_URL = f"file://{path}"


def main() -> None:
    """Runs the five executors one after the other."""
    config = MinhashConfig(n_grams=5, num_buckets=int(bands), hashes_per_bucket=int(rows))
    tasks = len(list(Path(folder).glob("*.jsonl.zst")))
    clean, signatures, pairs, clusters = (
        f"{out}/{name}" for name in ("clean", "signatures", "pairs", "clusters")
    )
    name = "${rank}.jsonl.zst"

    def excluded(rule: str) -> JsonlWriter:
        return JsonlWriter(f"{out}/excluded/{rule}", output_filename=name, compression="zstd")

    stages: dict[str, tuple[list[Any], int]] = {
        "clean": (
            [
                JsonlReader(folder, glob_pattern="*.jsonl.zst"),
                _Language(model, excluded("language")),
                filters.GopherQualityFilter(exclusion_writer=excluded("gopher_quality")),
                filters.GopherRepetitionFilter(exclusion_writer=excluded("gopher_repetition")),
                filters.C4QualityFilter(exclusion_writer=excluded("c4_quality")),
                JsonlWriter(clean, output_filename=name, compression="zstd"),
            ],
            tasks,
        ),
        "signatures": ([JsonlReader(clean), MinhashDedupSignature(signatures, config)], tasks),
        "pairs": ([MinhashDedupBuckets(signatures, pairs, config=config)], int(bands)),
        "clusters": ([MinhashDedupCluster(pairs, clusters, config=config)], 1),
        "drop": (
            [
                JsonlReader(clean),
                MinhashDedupFilter(clusters),
                JsonlWriter(f"{out}/kept", output_filename=name, compression="zstd"),
            ],
            tasks,
        ),
    }
    seconds = {}
    for stage, (pipeline, number) in stages.items():
        began = time.perf_counter()
        executor = LocalPipelineExecutor(
            pipeline=pipeline,
            tasks=number,
            workers=int(workers),
            logging_dir=f"{out}/logs/{stage}",
            start_method="fork",  # quicker than its default, and the CPU seconds are counted
        )
        executor.run()
        seconds[stage] = time.perf_counter() - began
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
