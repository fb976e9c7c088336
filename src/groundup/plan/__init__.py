"""What a run will need, and what the machine has: before anything is started."""
