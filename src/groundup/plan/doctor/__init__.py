"""Is this machine fit to train? Each module looks at one part of it."""
