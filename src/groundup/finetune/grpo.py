"""GRPO: completions of the model's own are rewarded, and those that beat their group are made likelier.

Shapes: B completions of this rank, T tokens, S completions of a step.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic

from groundup.core.config import config
from groundup.core.config_class import NotNegativeFloat, Positive, PositiveFloat
from groundup.core.errors import ConfigError
from groundup.finetune.policy_loss import Normalisation, ScaleRewards
from groundup.finetune.policy_objective import PolicyObjective
from groundup.finetune.prompts import PromptForm, prompt_data, prompt_encoder
from groundup.finetune.record_data import BY_EPOCHS, ConfigT
from groundup.finetune.rewards import BadRewards, Rewards
from groundup.finetune.rollout_batches import RolloutBatches
from groundup.inference.sampler import Sampling
from groundup.train.config import TrainConfig
from groundup.train.learning import Learning

if TYPE_CHECKING:
    from groundup.train.setup import Run

_LONGEST = 2048


@config
class Grpo:
    """Learning from rewards by comparing completions of a prompt with each other.

    A sample is a completion: ``global_batch_size`` of them are drawn for a step, ``group_size`` of a prompt.

    Attributes:
        reward: ``path/to/file.py:function``, called with prompt, completion and record; or a check of the
            record's answer: "exact" compares texts, "number" the last number of each, "regex" what
            ``pattern`` finds last. Or several.
        reward_weights: Of each of them; none for 1.
        pattern: Of "regex"; its first group, if it has one, is the answer.
        answer_field: Of the record, for checks.
        bad_rewards: What becomes of a completion whose reward raises or is not a finite number: "error" ends
            the run; "skip" counts it, and nothing is learned from it.
        group_size: Completions of a prompt.
        max_new_tokens: The greatest length of a completion, the id that ends it included.
        prompts: How texts are asked: as a user's "chat" with the model's template; as "text" to be continued;
            or "auto", which asks a model that has a template. Messages always need one.
        epochs: Passes over the prompts, where num_steps is not given.
        sampling: How completions are drawn.
        updates: Steps that learn from the same completions.
        scale_rewards: What a completion's advantage over its group is divided by: the standard deviation of
            the group's rewards, of the whole batch's, or nothing (Dr. GRPO).
        normalisation: What the loss is the mean of: "dapo" tokens; "grpo" completions, each the mean of its
            tokens; "dr_grpo" tokens, as if each completion had ``max_new_tokens``.
        clip_low: How far below 1 the ratio of probabilities since the completions were drawn may have an
            effect.
        clip_high: Likewise above.
        beta: Weight of the KL divergence from the model that the run began with; 0 needs no second model.
        weighted_kl: Weigh its estimate by the ratio of probabilities, which makes its gradient unbiased.
        log_samples: Completions with rewards in the log at each interval; all are in ``samples.jsonl``.
    """

    kind: Literal["grpo"] = "grpo"
    reward: str | tuple[str, ...] = ()
    reward_weights: tuple[float, ...] = ()
    pattern: str = ""
    answer_field: str = "answer"
    bad_rewards: BadRewards = "error"
    group_size: Annotated[int, pydantic.Field(ge=2)] = 8
    max_new_tokens: Positive = 256
    prompts: PromptForm = "auto"
    epochs: PositiveFloat = 1.0
    sampling: Sampling = Sampling()
    updates: Positive = 1
    scale_rewards: ScaleRewards = "group"
    normalisation: Normalisation = "dapo"
    clip_low: PositiveFloat = 0.2
    clip_high: PositiveFloat = 0.2
    beta: NotNegativeFloat = 0.0
    weighted_kl: bool = True
    log_samples: Annotated[int, pydantic.Field(ge=0)] = 2

    def __post_init__(self) -> None:
        """Checks the settings against each other."""
        if not self.rewards:
            raise ValueError("reward is missing: exact, number, regex or path/to/file.py:function")
        if len(set(self.rewards)) < len(self.rewards):
            raise ValueError("reward names one twice")
        if self.reward_weights and len(self.reward_weights) != len(self.rewards):
            raise ValueError(f"reward_weights has {len(self.reward_weights)}, and reward {len(self.rewards)}")
        if self.sampling.temperature == 0:
            raise ValueError("sampling.temperature 0 would draw the same completion for a whole group")

    @property
    def rewards(self) -> tuple[str, ...]:
        """Names of the rewards."""
        return (self.reward,) if isinstance(self.reward, str) else self.reward

    @staticmethod
    def defaults(tree: Mapping[str, Any]) -> dict[str, Any]:
        """Returns settings of the run that this stage has another default for."""
        model, data = tree.get("model") or {}, tree.get("data") or {}
        longest = model.get("max_sequence_length")
        name = Path(str(data.get("path", "prompts"))).name.partition(".")[0]
        return {
            "run_dir": f"runs/{name}-grpo",
            "num_steps": BY_EPOCHS,
            "data": {"sequence_length": min(longest, _LONGEST) if isinstance(longest, int) else _LONGEST},
            "global_batch_size": 64,
            "optimizer": {"kind": "adamw", "lr": 1e-6},
            "schedule": {"kind": "constant"},
            "validation": {"interval": 0},
            "log": {"interval": 1},
        }

    def completed(self, run: ConfigT) -> ConfigT:
        """Returns the config with what the prompts decide: the number of steps."""
        self.learning(run)
        if run.num_steps < BY_EPOCHS:
            return run
        samples = prompt_data(self)(run).train.num_samples
        steps = math.ceil(self.epochs * samples / run.global_batch_size)
        return dataclasses.replace(run, num_steps=max(1, steps))

    def learning(self, run: TrainConfig) -> Learning:
        """Returns what the training loop is given.

        Raises:
            ConfigError: A reward cannot be found, or the run's settings do not fit.
        """
        self._require_possible(run)
        rewards = Rewards(
            self.rewards,
            weights=self.reward_weights,
            pattern=self.pattern,
            answer_field=self.answer_field,
            bad=self.bad_rewards,
        )
        objective = PolicyObjective(
            temperature=self.sampling.temperature,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            beta=self.beta,
            weighted_kl=self.weighted_kl,
        )
        batches = RolloutBatches(self, rewards, objective)
        return Learning(
            open_data=prompt_data(self),
            begin=batches.begin,
            prepare=batches.prepare,
            objective=objective,
            encode_prompt=None if self.prompts == "text" else self._encode,
        )

    def _encode(self, run: "Run", text: str) -> list[int]:
        state = run.state
        return prompt_encoder(run.tokenizer, state.companions, state.bos_ids, self.prompts)(text)

    def _require_possible(self, run: TrainConfig) -> None:
        layout = run.layout
        refused = {
            "start.path": run.start.path is None and "there is no model to begin with",
            "layout": layout.ranks_of_a_copy > 1
            and "completions are drawn by a rank that has the whole model: tp, pp and cp are 1",
            "global_batch_size": run.global_batch_size % self.group_size
            and f"{run.global_batch_size} are no whole groups of stage.group_size {self.group_size}",
            "batch_ramp": len(set(run.batch_sizes.every)) > 1 and "each step has as many completions",
            "stage.max_new_tokens": self.max_new_tokens >= run.data.sequence_length
            and f"data.sequence_length {run.data.sequence_length} leaves no room for a prompt",
            "validation.interval": run.validation.interval > 0
            and "rewards are not measured on held-out prompts yet; tasks are, with eval.every",
            "spike_guard": run.spike_guard.kind == "rollback"
            and self.updates > 1
            and "a rollback would go amid the updates of the same completions: stage.updates is 1",
        }
        for where, reason in refused.items():
            if reason:
                raise ConfigError(reason, where=where)
