"""How a crowd model is trained: the trainer, its arguments, and what is found out before a training."""
