"""Pages of corpora and runs, and model cards: self-contained, without requests to anywhere."""
