"""What leaves the house: the model card, a classifier by itself, the processor of its items."""
