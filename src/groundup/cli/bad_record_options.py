"""The flags of the verbs that read documents and let the user say what is done with bad records."""

from groundup.core.errors import ConfigError
from groundup.corpus.bad_records import Action, BadRecordPolicy


def chosen_policy(action: Action, max_bad: float) -> BadRecordPolicy:
    """The policy that ``--bad-records`` and ``--max-bad`` name.

    Raises:
        ConfigError: ``--max-bad`` is no share.
    """
    if not 0 <= max_bad <= 1:
        raise ConfigError(
            f"{max_bad:g} is no share of the records", where="--max-bad", fix="Give a number from 0 to 1."
        )
    return BadRecordPolicy(action=action, max_bad=max_bad)
