"""A reward for ``stage.reward``: called with the prompt, what the model wrote, and the record."""


def brevity(prompt, completion, record):
    """From 0 for an empty answer down to -1 for one of sixteen characters or more."""
    return -min(1.0, len(completion) / 16)
