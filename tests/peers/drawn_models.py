"""Rivals with a network beside the classifier, with random parameters, and plain functions to recompute them."""

import numpy as np
import torch

from hf_maxmig.peers import peer
from tests.networks import small_head
from tests.worlds import random_votes

M, C = 4, 3


def drawn(name, num_items=11, **fields):
    """Return a rival in training mode with random weights, and a batch for it."""
    who, said = random_votes(num_items)
    model = peer(name, small_head(), num_annotators=M, **fields).train()
    model.initialize_crowd([(who, said)])
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.crowd_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    features = 2 * torch.randn(num_items, 5, generator=generator)
    return model, {"features": features, "annotators": who, "annotations": said}


def loss_of(model, batch):
    torch.manual_seed(0)
    return model.crowd_loss(model(**batch), batch)


def weights(model):
    """Return all weights beside the classifier in float64, by name."""
    return {
        name: value.double().numpy()
        for name, value in model.state_dict().items()
        if not name.startswith("classifier.")
    }


def hidden_and_logits(model, features):
    """Return the input and the output of the classifier's output layer, in float64."""
    with torch.no_grad():
        hidden = model.classifier.fc(features).relu()
        return hidden.double().numpy(), model.classifier.output(hidden).double().numpy()


def given(batch):
    """Return (item, annotator, class) of each vote."""
    table = zip(batch["annotators"].tolist(), batch["annotations"].tolist(), strict=True)
    return [
        (i, m, y)
        for i, (who, said) in enumerate(table)
        for m, y in zip(who, said, strict=True)
        if m >= 0 and y >= 0
    ]


def linear(w, name, x):
    return w[f"{name}.weight"] @ x + w[f"{name}.bias"]


def normed(w, name, rows):
    """Apply batch normalisation of training mode, column by column."""
    rows = np.array(rows)
    centred = (rows - rows.mean(axis=0)) / np.sqrt(rows.var(axis=0) + 1e-5)
    return centred * w[f"{name}.weight"] + w[f"{name}.bias"]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(scores):
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return scores / scores.sum(axis=-1, keepdims=True)
