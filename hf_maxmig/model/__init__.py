"""All that the Hub carries, and only that: saved beside the weights, these files are the remote code.

On saving, transformers copies them into one folder by their base names. So a file here imports nothing of
ours but its neighbours, by `from .name import ...`.
"""
