"""``groundup compare``."""

from pathlib import Path


def compare(first: Path, second: Path) -> None:
    """Compare two models item by item: does the second differ from the first by more than chance?

    Prints the mean of each model's items (nats, where the figure is a perplexity), the difference with its
    standard error, and the p-value of a paired test: exact for right or wrong (McNemar), normal elsewhere.

    For example:

        groundup compare a.json b.json

    Args:
        first: What `groundup eval --out` wrote of one model.
        second: The same of another.
    """
    from groundup.eval.results_file import compare_results

    rows = list(compare_results(first, second))  # so that nothing is printed of what cannot be compared
    print(f"{'task':<14}{'figure':<26}{'items':>7}{'first':>10}{'second':>10}{'difference':>20}{'p':>8}")
    for found in rows:
        change = f"{found.second - found.first:+.4f} ± {found.standard_error:.4f}"
        chance = f"{found.p_value:.3f}" if found.p_value >= 0.001 else "<0.001"
        print(
            f"{found.task:<14}{found.figure.replace('_', ' '):<26}{found.num_items:>7,}{found.first:>10.4f}"
            f"{found.second:>10.4f}{change:>20}{chance:>8}"
        )
