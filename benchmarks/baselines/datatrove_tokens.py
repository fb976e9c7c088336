"""datatrove's DocumentTokenizer over a folder of .jsonl.zst, run by a Python that has datatrove.

python datatrove_tokens.py TOKENIZER_JSON WORKERS FOLDER OUT
"""

import json
import sys
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer

if __name__ == "__main__":
    tokenizer, workers, folder, out = sys.argv[1:]
    executor = LocalPipelineExecutor(
        pipeline=[
            JsonlReader(folder, glob_pattern="*.jsonl.zst"),
            DocumentTokenizer(
                f"{out}/tokens",
                tokenizer_name_or_path=tokenizer,
                eos_token="<|endoftext|>",
                shuffle_documents=False,
            ),
        ],
        tasks=len(list(Path(folder).glob("*.jsonl.zst"))),
        workers=int(workers),
        logging_dir=f"{out}/logs",
    )
    executor.run()
    print(json.dumps({"bytes": sum(file.stat().st_size for file in Path(out, "tokens").glob("*.ds"))}))
