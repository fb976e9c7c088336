"""The data of a run that Megatron-LM made; see ``test_megatron_trace.py``."""

from pathlib import Path

import numpy as np

from groundup.tokens.dataset.indexed_writer import IndexedWriter

END = 299


def write_data(folder: Path) -> list[Path]:
    """Writes two data sets of documents whose ids go up by steps of their own; returns their prefixes."""
    prefixes = []
    for number, size in enumerate((30, 50)):
        random = np.random.RandomState(number)
        documents = []
        for length in random.randint(5, 60, size):
            ids = (random.randint(END) + np.cumsum(random.randint(1, 4 + 3 * number, length))) % END
            documents.append([*ids, END])
        prefixes.append(folder / f"set{number}_text_document")
        with IndexedWriter(prefixes[-1], vocab_size=300) as writer:
            lengths = np.array([len(document) for document in documents], dtype=np.int32)
            writer.add(np.concatenate(documents).astype(np.uint16), lengths)
    return prefixes
