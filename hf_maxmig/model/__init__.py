"""All the code that the Hub carries, and only that: these files are saved with the weights as remote code.

On saving, transformers copies them into one folder by their base names. So a file here imports none of our
code but its neighbours, by `from .name import ...`.
"""
