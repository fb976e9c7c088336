"""A model as a service: HTTP over the engine of ``inference``, and nothing else."""
