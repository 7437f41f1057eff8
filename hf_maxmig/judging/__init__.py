"""What is made of a trained model: who copies whom, whom to trust, the labels cleaned, and a page on all of it."""
