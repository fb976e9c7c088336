"""How a model and its data are spread over ranks; the model knows nothing of it."""
