"""Crowds with a calibrated classifier."""

import torch


def draw(right, num_items=600, num_classes=3, seed=0, certainty=3.0):
    """Draw (N, C) calibrated log_h, (N,) classes, (M, C, C) confusions and (N, M) labels.

    The class of each item is drawn from its own h, so that h is calibrated by construction.
    """
    generator = torch.Generator().manual_seed(seed)
    log_h = torch.randn(num_items, num_classes, generator=generator).mul(certainty).log_softmax(-1)
    truth = torch.multinomial(log_h.exp(), 1, generator=generator)[:, 0]
    right = torch.tensor(right)[:, None, None]
    confusion = torch.eye(num_classes) * right
    confusion = confusion + (1 - torch.eye(num_classes)) * (1 - right) / (num_classes - 1)
    said = [torch.multinomial(rows[truth], 1, generator=generator) for rows in confusion]
    return log_h, truth, confusion, torch.cat(said, dim=1)


def everyone(said):
    """Return annotator numbers for (N, M) votes in which everyone voted on every item."""
    return torch.arange(said.shape[1]).repeat(len(said), 1)


def weight_of(confusion):
    """Return the weight W that suits a confusion matrix."""
    return confusion.clamp(min=1e-3).log()
