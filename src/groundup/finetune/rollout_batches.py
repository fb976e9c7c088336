"""What a step of GRPO learns from: completions of its prompts, rewarded, with what is known of their tokens.

Shapes: B completions of this rank, T tokens, S completions of a step.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from groundup.core.log import logger
from groundup.finetune.policy_loss import deviation, group_advantages, token_weights
from groundup.finetune.policy_objective import PolicyObjective, batch_of
from groundup.finetune.prompts import SAMPLE, Prompt, PromptSplit
from groundup.finetune.rewards import SHOWN, Rewards, Scores
from groundup.finetune.rollout_files import RolloutFiles
from groundup.finetune.rollouts import Completion, complete_prompts, seed_of
from groundup.finetune.sample_file import SampleFile
from groundup.models import evaluating
from groundup.parallel.fsdp import without_gathering
from groundup.parallel.low_rank_linear import without_adapters
from groundup.train.data_loader import Batch
from groundup.train.forward_backward import inputs_of
from groundup.train.init_weights import begin
from groundup.train.loss import IGNORE
from groundup.train.setup import Run, empty_state
from groundup.train.state import TrainState

if TYPE_CHECKING:
    from groundup.finetune.grpo import Grpo


@dataclasses.dataclass(frozen=True)
class _Drawn:
    """A completion with its rewards, as ranks tell each other."""

    sample: int
    completion: Completion
    scores: Scores


class RolloutBatches:
    """Makes the batch of each step, when it begins.

    Args:
        stage: The settings.
        rewards: Of completions.
        objective: What is minimised.
    """

    def __init__(self, stage: "Grpo", rewards: Rewards, objective: PolicyObjective) -> None:
        self._stage = stage
        self._rewards = rewards
        self._objective = objective
        self._reference: TrainState | None = None
        self._kept: tuple[int, Batch] | None = None

    def begin(self, run: Run) -> None:
        """Loads the reference: the weights that the run began with, which those beside adapters still are."""
        if self._stage.beta and not run.learning.adapters:
            self._reference = empty_state(run.config, run.mesh, run.precision)
            begin(self._reference, run.config, run.mesh, run.tokenizer)
            self._reference.model.requires_grad_(False)
        self._samples = SampleFile(run.config.run_dir)
        self._files = RolloutFiles(run.config.run_dir, run.mesh, updates=self._stage.updates)

    def prepare(self, run: Run, batch: Batch) -> Batch:
        """Completes a batch of sample numbers; see ``Learning``.

        Raises:
            DataError: A reward failed.
            CheckpointError: The completions that a restored run goes on with are not there any more.
        """
        samples, updates = batch.extra[SAMPLE].tolist(), self._stage.updates
        if updates == 1:
            return self._make(run, samples)
        rollout, update = divmod(run.state.step, updates)
        if self._kept is None or self._kept[0] != rollout:
            if update:
                made = self._files.read(rollout).to(run.device)
            else:
                made = self._make(run, samples)
                self._files.write(rollout, made)
            self._kept = rollout, made
        return self._kept[1]

    def _make(self, run: Run, samples: Sequence[int]) -> Batch:
        stage, split, heartbeat = self._stage, run.data.train, run.heartbeat
        assert isinstance(split, PromptSplit), "the data of this stage are prompts"
        prompts = [split.prompt_of(sample) for sample in samples]
        heartbeat.record(run.state.step + 1, "drawing completions", is_long=True)
        completions = complete_prompts(
            run,
            [prompt.ids for prompt in prompts],
            [seed_of(run.config.seed, sample) for sample in samples],
            sampling=stage.sampling,
            max_new_tokens=stage.max_new_tokens,
            on_progress=heartbeat.keep_alive,
        )
        heartbeat.record(run.state.step + 1, "rewarding completions", is_long=True)
        own = []
        for sample, prompt, completion in zip(samples, prompts, completions, strict=True):
            scores = self._rewards.score(prompt.prompt, completion.text, prompt.record, where=prompt.where)
            own.append(_Drawn(sample, completion, scores))
            heartbeat.keep_alive()
        drawn = [one for of_rank in run.mesh.all_gather(own) for one in of_rank]
        rewards_S = torch.tensor([one.scores.total for one in drawn], dtype=torch.float64)
        advantages_S = group_advantages(rewards_S, stage.group_size, stage.scale_rewards)
        if run.mesh.is_first:
            self._tell(run, split, drawn, advantages_S.tolist())

        mine = slice(run.mesh.dp_rank * len(samples), (run.mesh.dp_rank + 1) * len(samples))
        texts = [(prompt.ids, one.completion.ids) for prompt, one in zip(prompts, own, strict=True)]
        # Of one length on all ranks, so that they can be put together.
        num_tokens = max(len(split.prompt_of(one.sample).ids) + len(one.completion.ids) - 1 for one in drawn)
        batch = batch_of(texts, num_tokens=num_tokens)
        lengths = [len(one.completion.ids) for one in own]
        extra = {"advantage": advantages_S[mine], **self._known(drawn, rewards_S, lengths)}
        batch = dataclasses.replace(batch, extra=extra).to(run.device)
        of_tokens: dict[str, Tensor] = {}
        if stage.updates > 1:
            of_tokens["old"] = _log_probs(run, run.state, batch, self._objective)
        if stage.beta:
            with without_adapters(run.state.model):
                of_tokens["reference"] = _log_probs(run, self._reference or run.state, batch, self._objective)
        return dataclasses.replace(batch, extra={**batch.extra, **of_tokens})

    def _known(
        self, drawn: Sequence[_Drawn], rewards_S: Tensor, own_lengths: Sequence[int]
    ) -> dict[str, Tensor]:
        """Returns weights of this rank's tokens, and figures of the step in each of its rows; all [B]."""
        stage = self._stage
        lengths_S = torch.tensor([float(len(one.completion.ids)) for one in drawn])
        weight_B = token_weights(
            torch.tensor(own_lengths),
            stage.normalisation,
            max_new_tokens=stage.max_new_tokens,
            mean_length=float(lengths_S.mean()),
        )
        truncated_S = torch.tensor([float(one.completion.finished != "stop") for one in drawn])
        figures = {
            "reward": rewards_S.nanmean().nan_to_num(),
            "reward_std": deviation(rewards_S.view(-1, stage.group_size)).mean(),
            "completion_length": lengths_S.mean(),
            "truncated": truncated_S.mean(),
            "bad_rewards": rewards_S.isnan().float().mean(),
        }
        known = {name: value.float().expand(len(own_lengths)) for name, value in figures.items()}
        return {"weight": weight_B, **known}

    def _tell(
        self, run: Run, split: PromptSplit, drawn: Sequence[_Drawn], advantages: Sequence[float]
    ) -> None:
        """Writes ``samples.jsonl``, and some of it into the log."""
        step = run.state.step + 1
        records = [
            _record(one, split.prompt_of(one.sample), advantage)
            for one, advantage in zip(drawn, advantages, strict=True)
        ]
        self._samples.write(step, records)
        if step % run.config.log.interval:
            return
        rising = sorted(records, key=lambda record: record["reward"])
        count = min(self._stage.log_samples, len(rising))
        for place in range(count):  # from the worst to the best
            shown = rising[place * (len(rising) - 1) // max(1, count - 1)]
            logger.info(
                "step %d: reward %.4g: %s -> %s",
                step,
                shown["reward"],
                SHOWN.repr(_last_text(shown["prompt"])),
                SHOWN.repr(shown["completion"]),
            )


def _record(one: _Drawn, prompt: Prompt, advantage: float) -> dict[str, Any]:
    """Returns a line of ``samples.jsonl``; rewards that failed are null."""
    return {
        "sample": one.sample,
        "where": prompt.where,
        "prompt": prompt.prompt,
        "completion": one.completion.text,
        "reward": one.scores.total,
        "rewards": one.scores.each,
        "advantage": advantage,
        "tokens": len(one.completion.ids),
        "finished": one.completion.finished,
    }


def _last_text(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])


def _log_probs(run: Run, state: TrainState, batch: Batch, objective: PolicyObjective) -> Tensor:
    """Returns log-probabilities of the targets without gradients [B, T]; 0 elsewhere."""
    found_BT = torch.zeros(batch.targets_BT.shape, device=run.device)
    size = run.config.micro_batch_size
    with torch.no_grad(), without_gathering(state.parts), evaluating(state.model):
        for micro_batch, rows_BT in zip(batch.split(size), found_BT.split(size), strict=True):
            with run.precision.autocast():
                hidden_BTD = state.model(**inputs_of(micro_batch))
            rows_BT[micro_batch.targets_BT != IGNORE] = objective.log_probs(
                state.model, hidden_BTD, micro_batch, run.precision
            )
    return found_BT
