"""What the command `maxmig` and the recipes share: flags, a run from data to a saved model, help. No other room imports it."""
