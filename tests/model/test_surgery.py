"""Surgery on classifiers: the features that an output layer reads, for any architecture and batch, and its outputs."""

import pytest
import torch
from torch import nn
from transformers import (
    ASTConfig,
    ASTForAudioClassification,
    BertConfig,
    BertForSequenceClassification,
    ConvNextConfig,
    ConvNextForImageClassification,
    DeiTConfig,
    DeiTForImageClassificationWithTeacher,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    T5Config,
    T5ForSequenceClassification,
    Wav2Vec2Config,
    Wav2Vec2ForSequenceClassification,
)
from transformers.modeling_outputs import ImageClassifierOutput

from hf_maxmig import HeadClassifier, HeadConfig
from hf_maxmig.model.surgery import (
    output_layers,
    penultimate_features,
    reorder_outputs,
    scale_outputs,
)
from hf_maxmig.training.item_features import features_of
from tests.networks import small_vit

C, PAD, EOS = 3, 0, 1
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}  # fmt: skip


def words(number, size):
    """Return the tokens of an item, without padding."""
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(2, 40, (size,), generator=generator)
    tokens[-1] = EOS
    return tokens


def padded_words(items, side, width):
    """Return a batch of items, padded on one side."""
    ids = torch.full((len(items), width), PAD)
    mask = torch.zeros_like(ids)
    for i, item in enumerate(items):
        place = slice(0, len(item)) if side == "right" else slice(width - len(item), width)
        ids[i, place], mask[i, place] = item, 1
    return {"input_ids": ids, "attention_mask": mask}


TEXT = {
    "bert": (BertForSequenceClassification, BertConfig(vocab_size=40, **SIZES), ("right",)),
    "distilbert": (
        DistilBertForSequenceClassification,
        DistilBertConfig(vocab_size=40, dim=16, n_layers=2, n_heads=2, hidden_dim=24),
        ("right",),
    ),
    "gpt2": (
        GPT2ForSequenceClassification,
        GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2),
        ("right",),  # padding on the left would shift positions
    ),
    "llama": (
        LlamaForSequenceClassification,
        LlamaConfig(vocab_size=40, num_key_value_heads=2, **SIZES),
        ("right", "left"),
    ),
    "t5": (
        T5ForSequenceClassification,
        T5Config(
            vocab_size=40,
            d_model=16,
            d_kv=8,
            d_ff=24,
            num_layers=2,
            num_heads=2,
            decoder_start_token_id=PAD,
        ),
        ("right",),
    ),
}


@pytest.fixture
def build():
    def of(kind, config):
        torch.manual_seed(0)
        config.num_labels, config.pad_token_id, config.eos_token_id = C, PAD, EOS
        return kind(config).eval()

    return of


def logits_again(model, features):
    """Apply the output layer to features."""
    layer = output_layers(model, C)[-1]
    if isinstance(layer, nn.Conv2d):
        features = features[:, :, None, None]
    return layer(features).flatten(1).detach()


@pytest.mark.parametrize(("name", "side"), [(n, s) for n, (*_, sides) in TEXT.items() for s in sides])  # fmt: skip
def test_features_of_a_text_do_not_depend_on_the_padding_of_its_batch(name, side, build):
    """An average that includes padding depends on the longest text of the batch."""
    kind, config, _ = TEXT[name]
    model = build(kind, config)
    items = [words(number, size) for number, size in enumerate((3, 9, 5))]
    alone = []
    for item in items:
        inputs = padded_words([item], side, len(item))
        alone.append(penultimate_features(model, inputs, C))
        assert torch.equal(alone[-1], penultimate_features(model, inputs, C))
    alone = torch.cat(alone)
    assert torch.pdist(alone).min() > 1e-2
    for width in (9, 14):
        inputs = padded_words(items, side, width)
        together = penultimate_features(model.train(), inputs, C)
        assert model.training
        assert not together.requires_grad
        torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
        with torch.no_grad():
            logits = model.eval()(**inputs).logits
        torch.testing.assert_close(logits_again(model, together), logits, atol=1e-5, rtol=1e-5)


OTHERS = {
    "vit": lambda: (small_vit(), {"pixel_values": torch.randn(4, 3, 16, 16)}),
    "convnext": lambda: (
        ConvNextForImageClassification(
            ConvNextConfig(num_stages=2, hidden_sizes=[8, 12], depths=[1, 1], num_labels=C)
        ),
        {"pixel_values": torch.randn(4, 3, 32, 32)},
    ),
    "ast": lambda: (
        ASTForAudioClassification(
            ASTConfig(patch_size=8, max_length=24, num_mel_bins=16, num_labels=C, **SIZES)
        ),
        {"input_values": torch.randn(4, 24, 16)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_features_of_pictures_and_sounds_are_what_the_logits_are_a_line_of(name):
    """The output layer applied to the features gives the logits.

    An item's features do not depend on its batch.
    """
    torch.manual_seed(0)
    model, inputs = OTHERS[name]()
    model.eval()
    features = penultimate_features(model, inputs, C)
    with torch.no_grad():
        logits = model(**inputs).logits
    torch.testing.assert_close(logits_again(model, features), logits, atol=1e-5, rtol=1e-5)
    first = penultimate_features(model, {n: t[:1] for n, t in inputs.items()}, C)
    torch.testing.assert_close(first, features[:1], atol=1e-5, rtol=1e-5)
    assert torch.pdist(features).min() > 0


def test_features_of_sounds_do_not_depend_on_the_padding_of_their_batch(build):
    """As for the logits, frames of silence added after a sound must be left out."""
    config = Wav2Vec2Config(
        conv_dim=(8, 8), conv_kernel=(5, 3), conv_stride=(5, 2), num_feat_extract_layers=2, vocab_size=40,
        feat_extract_norm="layer", num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        classifier_proj_size=12, **SIZES,
    )  # fmt: skip
    model = build(Wav2Vec2ForSequenceClassification, config)
    sound = torch.randn(1, 200)
    found = []
    for width in (200, 320):
        values, mask = torch.zeros(2, width), torch.zeros(2, width, dtype=torch.int64)
        values[0, :200], mask[0, :200] = sound, 1
        values[1], mask[1] = torch.randn(width), 1
        inputs = {"input_values": values, "attention_mask": mask}
        found.append(penultimate_features(model, inputs, C))
        with torch.no_grad():
            logits = model(**inputs).logits
        torch.testing.assert_close(logits_again(model, found[-1]), logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-4, rtol=1e-4)


class OfPlaces(nn.Module):
    """A classifier whose output layer reads several positions, whose scores are then pooled."""

    def __init__(self, pool, output=None):
        super().__init__()
        self.output, self.pool = output or nn.Linear(6, C), pool

    def forward(self, places, mask):
        return ImageClassifierOutput(logits=self.pool(self.output(places), mask))


def masked_mean(scores, mask):
    return (scores * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        (masked_mean, masked_mean),
        (lambda s, m: 3 * masked_mean(s, m) + 1, masked_mean),
        (lambda s, m: masked_mean(s, m).log_softmax(-1), masked_mean),
        (lambda s, m: s[:, 1].softmax(-1), lambda s, m: s[:, 1]),
    ],
    ids=["mean", "scaled", "normalised", "one"],
)
def test_places_count_as_much_as_in_the_logits(pool, expected):
    """Positions are weighted as in the logits, whatever follows the layer. Masked positions may even be NaN."""
    torch.manual_seed(0)
    places, mask = torch.randn(4, 5, 6), torch.ones(4, 5)
    mask[:, 3:] = 0
    inputs = {"places": places, "mask": mask}
    found = penultimate_features(OfPlaces(pool), inputs, C)
    torch.testing.assert_close(found, expected(places, mask))


@pytest.mark.parametrize("shape", [(4, 5, 6), (4, 2, 3, 6)], ids=["tokens", "a map"])
def test_places_of_a_map_are_read_in_the_layers_own_axis(shape):
    """A linear layer reads the last axis, even of four."""
    places = torch.randn(shape)
    model = OfPlaces(lambda s, m: s.flatten(1, -2).mean(dim=1))
    found = penultimate_features(model, {"places": places, "mask": None}, C)
    torch.testing.assert_close(found, places.flatten(1, -2).mean(dim=1))


def test_a_convolution_of_several_places_gives_their_mean():
    """Its output positions lie between those of its input."""
    places = torch.randn(4, 6, 5, 5)
    model = OfPlaces(lambda s, m: s.mean(dim=(2, 3)), nn.Conv2d(6, C, 3))
    found = penultimate_features(model, {"places": places, "mask": None}, C)
    torch.testing.assert_close(found, places.mean(dim=(2, 3)))


@pytest.mark.parametrize(
    "pool",
    [
        lambda s, m: s[:, 0].detach(),
        lambda s, m: torch.zeros(len(s), C) + 0 * s.sum(),
        lambda s, m: s.mean(dim=1)[:2],
    ],
    ids=["not from it", "none counts", "other items"],
)
def test_no_features_where_the_logits_do_not_come_from_the_layer(pool):
    """Then the layer's input says nothing about the item."""
    inputs = {"places": torch.randn(4, 5, 6), "mask": None}
    assert penultimate_features(OfPlaces(pool), inputs, C) is None
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()


def test_logits_that_are_no_numbers_give_features_that_are_none():
    """Whether a layer reads items must not depend on their values: other processes would wait for this one."""
    places = torch.randn(4, 5, 6)
    places[2] = torch.nan
    model = OfPlaces(lambda s, m: s.mean(dim=1).softmax(-1))
    found = penultimate_features(model, {"places": places, "mask": None}, C)
    assert found.isfinite().all(dim=1).tolist() == [True, True, False, True]


@pytest.mark.parametrize(("name", "side"), [(n, s) for n, (*_, sides) in TEXT.items() for s in sides])  # fmt: skip
def test_mean_of_an_encoder_stands_beside_what_the_output_layer_reads(name, side, build):
    """Pooling layers may be untrained: in them a small BERT loses half of its accuracy."""
    kind, config, _ = TEXT[name]
    model = build(kind, config)
    items = [words(number, size) for number, size in enumerate((3, 9, 5, 7))]

    def found(width, sizes):
        rows = torch.arange(len(items)).split(sizes)
        batches = (
            padded_words([items[i] for i in part], side, width) | {"crowd_row": part}
            for part in rows
        )
        return features_of(model, batches, C, len(items), seed=0)

    whole = found(9, [4])
    read = torch.cat(
        [penultimate_features(model, padded_words([i], side, len(i)), C) for i in items]
    )
    states = []
    hook = model.base_model.register_forward_hook(lambda *given: states.append(given[-1][0][0]))
    with torch.no_grad():
        for item in items:
            model(**padded_words([item], side, len(item)))
    hook.remove()
    means = torch.stack([one.mean(dim=0) for one in states])
    assert whole.shape == (4, read.shape[1] + means.shape[1])
    for part, expected in ((whole[:, : read.shape[1]], read), (whole[:, read.shape[1] :], means)):
        centred = expected - expected.mean(dim=0)
        expected = centred / centred.square().mean().sqrt()
        torch.testing.assert_close(part, expected, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(found(14, [3, 1]), whole, atol=1e-4, rtol=1e-3)
    assert not model.base_model._forward_hooks


@pytest.mark.parametrize("name", OTHERS)
def test_features_of_pictures_and_sounds_are_found_for_the_start(name):
    """If the encoder's states are not positions of an item, the output layer's input is used alone."""
    torch.manual_seed(0)
    model, inputs = OTHERS[name]()
    number = len(next(iter(inputs.values())))
    found = features_of(model, [inputs | {"crowd_row": torch.arange(number)}], C, number, seed=0)
    read = penultimate_features(model, inputs, C)
    assert found.isfinite().all()
    assert found.shape[1] in (read.shape[1], 2 * read.shape[1])


def test_outputs_of_two_heads_are_reordered_together():
    """A distilled model averages two heads. Reordering one of them alone would mix up the classes."""
    config = DeiTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=32, patch_size=8,
        num_labels=5,
    )  # fmt: skip
    torch.manual_seed(0)
    classifier = DeiTForImageClassificationWithTeacher(config)
    for layer in (classifier.cls_classifier, classifier.distillation_classifier):
        nn.init.normal_(layer.weight)
    inputs = {"pixel_values": torch.randn(4, 3, 32, 32)}
    before = classifier.eval()(**inputs).logits
    order = torch.tensor([4, 2, 0, 1, 3])
    assert reorder_outputs(classifier, order, inputs)
    torch.testing.assert_close(classifier(**inputs).logits, before[:, order])


class Layered(nn.Module):
    """A classifier with a last layer of one's choice, and a function applied to its logits."""

    def __init__(self, output, after=None):
        super().__init__()
        self.body, self.output, self.after = nn.Linear(4, 6), output, after or nn.Identity()

    def forward(self, features):
        hidden = self.body(features).relu()
        if isinstance(self.output, nn.Conv2d):
            logits = self.output(hidden[:, :, None, None]).flatten(1)
        else:
            logits = self.output(hidden)
        return ImageClassifierOutput(logits=self.after(logits))


@pytest.mark.parametrize(
    ("output", "has_bias"),
    [
        (nn.Linear(6, 3), True),
        (nn.Linear(6, 3, bias=False), False),
        (nn.Conv2d(6, 3, 1), True),
        (nn.Conv2d(6, 3, 1, bias=False), False),
    ],
    ids=str,
)
def test_outputs_are_scaled_in_the_last_layer(output, has_bias):
    """The scale must be in the weights, so that the classifier's native checkpoint is as confident as it should be."""
    model, x = Layered(output), torch.randn(5, 4)
    before = model(x).logits.detach()
    shift = torch.tensor([0.5, -0.25, 0.0])
    assert scale_outputs(model.train(), 0.25, shift, {"features": x})
    assert model.training
    expected = 0.25 * before + (shift if has_bias else 0.0)
    torch.testing.assert_close(model(x).logits.detach(), expected)


class Cosine(nn.Module):
    """A layer whose output does not follow when its input is scaled."""

    def forward(self, logits):
        return logits / logits.norm(dim=1, keepdim=True)


@pytest.mark.parametrize(
    "model", [Layered(nn.Linear(6, 3), Cosine()), Layered(nn.Sequential(nn.Linear(6, 4)), nn.Sequential(nn.Softmax(-1), nn.Linear(4, 3), nn.Tanh()))]
)  # fmt: skip
def test_outputs_that_cannot_be_scaled_stay_as_they_are(model):
    """A classifier that was scaled only in part would be another one."""
    torch.manual_seed(0)
    with torch.no_grad():  # small weights would leave Tanh almost linear
        for parameter in model.parameters():
            parameter.normal_()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    inputs = {"features": torch.randn(5, 4)}
    assert not scale_outputs(model.eval(), 0.5, torch.zeros(3), inputs)
    assert not model.training
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_features_are_what_the_output_layer_reads():
    """The output layer applied to the features must give the logits."""
    x = torch.randn(5, 4)
    model = Layered(nn.Linear(6, 3))
    with torch.no_grad():
        found = penultimate_features(model.train(), {"features": x}, 3)
        torch.testing.assert_close(model.output(found), model(x).logits)
    assert model.training
    head = HeadClassifier(HeadConfig(input_size=4, num_labels=3))
    assert penultimate_features(head, {"features": x}, 3) is x
    pictures = torch.randn(5, 1, 2, 2)
    assert torch.equal(penultimate_features(head, {"pixel_values": pictures}, 3), pictures.flatten(1))  # fmt: skip
    assert penultimate_features(Layered(nn.Linear(6, 4)), {"features": x}, 3) is None
    conv = Layered(nn.Conv2d(6, 3, 1))
    with torch.no_grad():
        assert penultimate_features(conv, {"features": x}, 3).shape == (5, 6)
