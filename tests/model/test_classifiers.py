"""The paper's own networks: layers, inputs and their built-in loss."""

import copy

import pytest
import torch
from torch import nn

from hf_maxmig import FourLayerCNN, FourLayerCNNConfig, HeadClassifier, MaxMIGModel
from tests.networks import cnn, head_on_backbone


def pictures():
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_head_takes_features_or_pictures_alike():
    """A saved model takes pictures although its head was trained on features."""
    model = MaxMIGModel.from_classifier(head_on_backbone(), num_annotators=4).eval()
    features = HeadClassifier.encode(model.classifier.encoder, pictures())
    assert features.shape == (4, 12)
    torch.testing.assert_close(
        model(features=features).logits, model(pixel_values=pictures()).logits
    )
    with pytest.raises(ValueError, match="got neither"):
        model()


def test_too_small_a_picture_for_the_four_layers_is_refused():
    """Four poolings leave nothing of a picture of 8 pixels."""
    with pytest.raises(ValueError, match="`image_size` must be at least 16, got 8"):
        FourLayerCNN(FourLayerCNNConfig(image_size=8))


def test_four_layers_are_those_of_the_paper():
    """Compare with the paper's layers written out. The network may run them in a faster order."""
    model = cnn().train()
    twin, hidden = copy.deepcopy(model), pictures()
    for convolution, norm, *_ in twin.convolutions:
        hidden = nn.functional.max_pool2d(norm(convolution(hidden)).relu(), 2)
    logits = twin.output(twin.dropout.eval()(twin.fc(hidden.flatten(1)).relu()))
    model.dropout.eval()
    out = model(pictures()).logits
    torch.testing.assert_close(out, logits)
    for loss in (out.square().sum(), logits.square().sum()):
        loss.backward()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_grey_network_takes_colour_pictures():
    """Pipelines open every picture in colour."""
    model = FourLayerCNN(FourLayerCNNConfig(num_channels=1, image_size=16, num_labels=2)).eval()
    grey = torch.randn(2, 1, 16, 16)
    torch.testing.assert_close(model(grey).logits, model(grey.expand(-1, 3, -1, -1)).logits)


def test_plain_loss_of_our_classifiers_is_cross_entropy():
    """They are Hub models in their own right, so a plain Trainer must be able to train them."""
    model = cnn().eval()
    labels = torch.tensor([1, 0, 4, 2])
    out = model(pictures(), labels=labels)
    torch.testing.assert_close(out.loss, nn.functional.cross_entropy(out.logits, labels))
