"""Using a trained model: which annotators to trust, who copies whom, clean labels, and a report."""
