"""Loss spikes, values that are not finite, full GPUs: how a run survives them, or is explained."""
