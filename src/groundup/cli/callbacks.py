"""What the command line hands to the training loop: evaluation and generation on the model as it is."""

import functools

from groundup.checkpoint.loaded_model import LoadedModel, stop_ids
from groundup.cli.generate import prompt_ids
from groundup.eval.perplexity import perplexity_of_samples, token_byte_lengths
from groundup.inference.engine import Engine
from groundup.inference.sampler import Sampling
from groundup.tokens.sampling.collate import Evaluation
from groundup.tokens.sampling.dataset import Samples
from groundup.train.forward_backward import loss_without_gradients
from groundup.train.setup import Run


def evaluate(run: Run, dataset: Samples, num_batches: int) -> Evaluation:
    """Loss over the first ``num_batches`` micro-batches of a split in file order; 0 for all of it."""
    config = run.config
    return perplexity_of_samples(
        functools.partial(
            loss_without_gradients, run.state, config=config, precision=run.precision, mesh=run.mesh
        ),
        config.model.vocab_size,
        dataset,
        num_samples=num_batches * config.micro_batch_size,
        mask_documents=config.data.mask_documents,
        byte_lengths=token_byte_lengths(run.tokenizer),
        batch_size=config.micro_batch_size * run.mesh.dp * run.mesh.layout.pp,
        on_progress=lambda _: run.heartbeat.keep_alive(),
    )


def complete(run: Run) -> str:
    """A completion of ``config.sample.prompt``."""
    config = run.config.sample
    loaded = LoadedModel(
        config=run.config.model,
        model=run.state.model,
        tokenizer=run.tokenizer,
        source=run.config.run_dir,
        bos_ids=run.state.bos_ids,
        companions=run.state.companions,
    )
    generation = Engine(loaded).generate(
        [prompt_ids(loaded, config.prompt)],
        sampling=Sampling(temperature=config.temperature),
        max_new_tokens=config.max_new_tokens,
        stop_ids=stop_ids(loaded),
    )[0]
    return generation.text
