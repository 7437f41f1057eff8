"""Heads on frozen encoders: which positions of an item are pooled into its vector, and what is refused."""

import pytest
import torch
from transformers import (
    AutoModel,
    DistilBertConfig,
    DistilBertModel,
    ResNetConfig,
    ResNetModel,
    T5Config,
    T5Model,
    ViTConfig,
    ViTModel,
    Wav2Vec2Model,
    WhisperConfig,
    WhisperModel,
)

from hf_maxmig import (
    AudioHeadClassifier,
    AudioHeadConfig,
    HeadClassifier,
    HeadConfig,
    MaxMIGModel,
    TextHeadClassifier,
    TextHeadConfig,
)
from hf_maxmig.model.pooling import encoded
from hf_maxmig.model.surgery import penultimate_features
from tests.modalities import AUDIO, MODALITIES, SMALL, TEXT, wav2vec2

TOKENS = torch.tensor([[2, 3, 4, 5, 0], [6, 7, 0, 0, 0]])
MASK = (TOKENS > 0).long()


def hidden(encoder, tokens):
    with torch.no_grad():
        return encoder(input_ids=tokens).last_hidden_state


@pytest.mark.parametrize("pooling", [None, "mean", "cls", "pooled"])
def test_texts_are_pooled_over_what_is_attended_to(pooling):
    """With padding in the mean, a text's features would depend on the other texts in its batch."""
    head = TEXT.on_encoder(pooling=pooling)
    found = head.read(TOKENS, MASK)
    for row, length in enumerate((4, 2)):
        alone = TOKENS[row : row + 1, :length]
        with torch.no_grad():
            out = head.encoder(input_ids=alone)
        expected = {
            "cls": out.last_hidden_state[:, 0],
            "pooled": out.pooler_output,
        }.get(pooling, out.last_hidden_state.mean(dim=1))
        torch.testing.assert_close(found[row : row + 1], expected)
    assert TextHeadConfig().pooling is None
    logits = head(TOKENS, MASK).logits
    torch.testing.assert_close(head(features=found).logits, logits)
    torch.testing.assert_close(penultimate_features(head, {"input_ids": TOKENS, "attention_mask": MASK, "x": MASK}, 3), found)  # fmt: skip


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_texts_may_be_padded_on_the_left(pooling):
    """Decoders are padded on the left, where the first position would be padding."""
    torch.manual_seed(0)
    config = T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=11)
    encoder = T5Model(config).eval()  # with relative positions, and a decoder that is not run
    right = {"input_ids": TOKENS, "attention_mask": MASK}
    left = {name: torch.stack([row.roll(n) for row, n in zip(tensor, (1, 3), strict=True)]) for name, tensor in right.items()}  # fmt: skip
    torch.testing.assert_close(encoded(encoder, left, pooling), encoded(encoder, right, pooling))


def test_sounds_are_pooled_over_the_moments_that_are_attended_to():
    """An encoder shortens a sound, so the mask of its samples fits none of its outputs."""
    head = AUDIO.on_encoder()
    generator = torch.Generator().manual_seed(0)
    sounds = torch.randn(2, 400, generator=generator)
    mask = torch.ones(2, 400, dtype=torch.int64)
    mask[1, 180:] = 0
    sounds = sounds * mask
    found = head.read(sounds, attention_mask=mask)
    torch.testing.assert_close(found[1:], head.read(sounds[1:, :180]))
    assert (found[1] - head.read(sounds)[1]).abs().max() > 0.01  # padding has an effect


def test_spectrograms_with_a_mask_are_shortened_too():
    """Whisper pads every sound to half a minute: an unmasked mean would be mostly that of silence."""
    torch.manual_seed(0)
    config = WhisperConfig(
        d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=8, decoder_ffn_dim=8, vocab_size=9, num_mel_bins=4, max_source_positions=50,
        pad_token_id=1, bos_token_id=1, eos_token_id=1, decoder_start_token_id=1,
    )  # fmt: skip
    encoder = WhisperModel(config).eval()
    head = AudioHeadClassifier.from_encoder(encoder, input_size=8, num_labels=3)
    features = torch.randn(2, 4, 100)
    mask = torch.ones(2, 100, dtype=torch.int64)
    mask[1, 40:] = 0
    with torch.no_grad():
        out = encoder.get_encoder()(features).last_hidden_state
    expected = torch.stack([out[0].mean(dim=0), out[1, :20].mean(dim=0)])
    found = head.read(input_features=features, attention_mask=mask)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(head.read(input_features=features), out.mean(dim=1))


@pytest.mark.parametrize("pooling", [None, "mean", "cls", "pooled"])
def test_pictures_are_pooled_as_named(pooling):
    """By default, heads on pictures read the pooled output or, without one, the mean."""
    torch.manual_seed(0)
    pixels = torch.randn(2, 3, 16, 16)
    vit = ViTModel(ViTConfig(hidden_size=8, image_size=16, patch_size=8, **SMALL)).eval()
    with torch.no_grad():
        out = vit(pixel_values=pixels)
    expected = {"mean": out.last_hidden_state.mean(dim=1), "cls": out.last_hidden_state[:, 0]}
    head = HeadClassifier.from_encoder(vit, input_size=8, pooling=pooling)
    torch.testing.assert_close(head.read(pixels), expected.get(pooling, out.pooler_output))
    bare = ViTModel(vit.config, add_pooling_layer=False).eval()
    head = HeadClassifier.from_encoder(bare, input_size=8)
    with torch.no_grad():
        mean = bare(pixel_values=pixels).last_hidden_state.mean(dim=1)
    torch.testing.assert_close(head.read(pixels), mean)


def test_input_that_the_encoder_does_not_take_is_left_out():
    """BERT's tokenizer makes `token_type_ids`, which DistilBERT does not accept."""
    config = DistilBertConfig(dim=8, n_layers=1, n_heads=2, hidden_dim=8, vocab_size=11)
    head = TextHeadClassifier.from_encoder(DistilBertModel(config), input_size=8, num_labels=3).eval()  # fmt: skip
    without = head(TOKENS, MASK).logits
    torch.testing.assert_close(head(TOKENS, MASK, torch.ones_like(TOKENS)).logits, without)


def test_second_text_is_told_from_the_first():
    """Token types must reach an encoder that reads them, so that it can tell the second text from the first."""
    head = TEXT.on_encoder().eval()
    types = torch.tensor([[0, 0, 1, 1, 0], [0, 1, 0, 0, 0]])
    first, second = head(TOKENS, MASK).logits, head(TOKENS, MASK, types).logits
    assert (first - second).abs().max() > 1e-3


def test_what_cannot_be_pooled_is_refused():
    """An encoder without a pooled output used to fail with a bare AttributeError."""
    distil = DistilBertModel(DistilBertConfig(dim=8, n_layers=1, n_heads=2, hidden_dim=8, vocab_size=11))  # fmt: skip
    head = TextHeadClassifier.from_encoder(distil, input_size=8, pooling="pooled")
    with pytest.raises(ValueError, match="must be 'mean' or 'cls' for DistilBertModel, .*no pooled"):  # fmt: skip
        head(TOKENS)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="basic")
    head = HeadClassifier.from_encoder(ResNetModel(config), input_size=8, pooling="cls")
    with pytest.raises(ValueError, match="must be 'mean' or 'pooled' for ResNetModel, got 'cls'"):
        head(torch.zeros(1, 3, 16, 16))
    for kind in (HeadConfig, TextHeadConfig, AudioHeadConfig):
        with pytest.raises(ValueError, match="`pooling` must be one of mean, cls, pooled or None, got 'max'"):  # fmt: skip
            kind(pooling="max")


def test_missing_inputs_are_named():
    """An error must say what is missing: features and items, or the encoder that reads the items."""
    for modality, names in ((TEXT, "`input_ids`"), (AUDIO, "`input_values` or `input_features`")):
        with pytest.raises(ValueError, match=f"must be given `features` or {names}, got neither"):
            modality.on_encoder()()
    alone = TextHeadClassifier(TextHeadConfig(input_size=4, num_labels=3))
    assert alone(features=torch.zeros(2, 4)).logits.shape == (2, 3)
    with pytest.raises(ValueError, match="must be given `features`, got `input_ids` without an encoder"):  # fmt: skip
        alone(TOKENS)
    with pytest.raises(ValueError, match=r"`TextHeadConfig\(input_size=5\)`"):
        alone(features=torch.zeros(2, 5))


@pytest.mark.parametrize("modality", MODALITIES, ids=repr)
def test_encoder_stays_frozen_and_without_dropout(modality):
    """A backbone that is unfrozen or noisy is not the model that made the features."""
    head = modality.on_encoder().train()
    assert head.fc.training
    assert not any(module.training for module in head.encoder.modules())
    trained = {name.split(".")[0] for name, p in head.named_parameters() if p.requires_grad}
    assert trained == {"fc", "output"}


def test_head_in_half_precision_comes_back_so(tmp_path):
    """Features are float32 while the layers of the head are bfloat16."""
    model = MaxMIGModel.from_classifier(TEXT.on_encoder().to(torch.bfloat16), num_annotators=2)
    model.save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path).eval()
    assert again.classifier.encoder.dtype == again.dtype == torch.bfloat16
    logits = again(input_ids=TOKENS, attention_mask=MASK).logits
    torch.testing.assert_close(logits, model.eval()(input_ids=TOKENS, attention_mask=MASK).logits)


def test_sounds_without_a_mask_are_pooled_whole():
    """The first wav2vec 2.0 networks were trained without masks, so their feature extractor makes none."""
    torch.manual_seed(0)
    encoder = Wav2Vec2Model(wav2vec2()).eval()
    sounds = torch.randn(2, 300)
    with torch.no_grad():
        mean = encoder(sounds).last_hidden_state.mean(dim=1)
    torch.testing.assert_close(encoded(encoder, {"input_values": sounds}), mean)
