"""Ends a run whose figure on held-out data no longer improves; what was measured is in ``metrics.jsonl``."""

import orjson

from groundup.core.errors import ConfigError
from groundup.core.log import logger
from groundup.train.metrics import METRICS_FILE
from groundup.train.setup import Run


def stops_early(run: Run) -> bool:
    """Tells whether the last ``validation.patience`` measurements were no better than one before; collective.

    It is asked again where a run continues, so that one that has stopped stays so.

    Raises:
        ConfigError: There are measurements, and none has the figure.
    """
    settings, step = run.config.validation, run.state.step
    if not settings.patience or not step:
        return False
    return run.mesh.any(run.mesh.is_first and _is_exhausted(run, step))


def _is_exhausted(run: Run, step: int) -> bool:
    settings = run.config.validation
    kind, _, figure = settings.metric.rpartition(".")
    path = run.config.run_dir / METRICS_FILE
    lines = path.read_bytes().splitlines() if path.is_file() else []
    records = [record for record in map(orjson.loads, lines) if record["step"] <= step]
    measured = [record for record in records if record["kind"] == (kind or "validation")]
    values = {record["step"]: record[figure] for record in measured if figure in record}
    if measured and not values:
        names = ", ".join(name for name in measured[-1] if name not in ("kind", "step"))
        raise ConfigError(
            f"{settings.metric} is not measured", where="validation.metric", fix=f"There are: {names}."
        )
    if step not in values:
        return False
    sign = 1 if settings.better == "lower" else -1
    best = min(values, key=lambda at: (sign * values[at], at))
    since = sum(at > best for at in values)
    if since < settings.patience:
        return False
    logger.info(
        "step %d: stopping early: %s was best at step %d (%.4f), and not better in %d measurements since",
        step, settings.metric, best, values[best], since,
    )  # fmt: skip
    return True
