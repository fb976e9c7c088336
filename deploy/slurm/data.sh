#!/bin/bash
# A corpus or its tokens, made by an array of jobs over a file system that they share. To be run on the login node, with the number of
# jobs and a command:
#     deploy/slurm/data.sh 16 tokens build corpus --prefix tokens/web --tokenizer gpt2
#     ROUNDS=6 deploy/slurm/data.sh 16 corpus run recipe.yaml num_shards=256 -o corpus
# A round ends where a stage needs all shards of the one before: ROUNDS is 1 for tokens; for a corpus 1, and 3 more for each stage that
# deduplicates and 2 for a shuffle. Too few are no harm: the last job does what is left, alone. It is submitted again after a failure.
set -euo pipefail

jobs=${1:?the number of jobs}
shift
script=$(dirname "$0")/data.sbatch
last=
for _ in $(seq "${ROUNDS:-1}"); do
    last=$(sbatch --parsable --kill-on-invalid-dep=yes --array="0-$((jobs - 1))" ${last:+--dependency="afterok:$last"} "$script" "$@")
done
last=$(sbatch --parsable --kill-on-invalid-dep=yes --dependency="afterok:$last" "$script" "$@")
echo "job $last ends it"
