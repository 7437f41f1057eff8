"""Columns become a classifier's inputs: texts are truncated, sounds brought to one rate and length."""

import logging

import numpy as np
import pytest
from datasets import DatasetDict
from transformers import (
    AutoModelForAudioClassification,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForSequenceClassification,
)

from hf_maxmig.command.content import Content
from hf_maxmig.command.items import read_folder, read_table
from hf_maxmig.command.processing import set_length, with_inputs
from tests.written_items import RATE, write_rows, write_sound, write_sound_model, write_text_model

SOUNDS = Content("audio", ("audio",))


def tone(seconds, rate=RATE):
    return 0.5 * np.sin(np.arange(round(seconds * rate)) * 440 * 2 * np.pi / rate)


def small_wav2vec2():
    config = Wav2Vec2Config(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, conv_dim=(8,), conv_stride=(5,),
        conv_kernel=(10,), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
    )  # fmt: skip
    return Wav2Vec2ForSequenceClassification(config)


def read(folder):
    return DatasetDict(train=read_folder(str(folder))[0])


def test_long_texts_are_cut_and_short_ones_are_not_filled(tmp_path):
    """Texts are padded per batch. Padded here, all would be as long as the longest."""
    rows = [("a", "the film " * 9, "was good"), ("b", "the film", "was")]
    table = read_table(str(write_rows(tmp_path / "a.csv", ("id", "text", "more"), rows)))
    folder = write_text_model(tmp_path / "model")
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    made = with_inputs(table, Content("text", ("text",)), tokenizer, model)
    assert list(map(len, made["input_ids"])) == [12, 2]
    assert made["text"][:] == table["text"][:]  # the report shows it
    pairs = with_inputs(table, Content("text", ("text", "more")), tokenizer, model)
    assert list(map(len, pairs["input_ids"])) == [12, 3]


def test_sounds_get_the_length_of_the_longest(tmp_path, caplog):
    """With sounds of several lengths, a network without a mask would notice the amount of padding."""
    for i, seconds in enumerate((0.1, 0.25, 0.05)):
        write_sound(tmp_path / f"s{i}.wav", tone(seconds))
    splits, extractor = read(tmp_path), Wav2Vec2FeatureExtractor(sampling_rate=RATE)
    with caplog.at_level(logging.WARNING):
        set_length(splits, "audio", extractor, None)
    assert extractor.max_seconds == 0.25
    assert "cut or filled up to 0.25 seconds; `--max_seconds` sets another" in caplog.text
    made = with_inputs(splits["train"], SOUNDS, extractor, small_wav2vec2())
    assert list(map(len, made["input_values"])) == [2000] * 3
    assert not np.any(np.array(made["input_values"][0])[800:])
    set_length(splits, "audio", extractor, 0.125)
    cut = with_inputs(splits["train"], SOUNDS, extractor, small_wav2vec2())
    assert list(map(len, cut["input_values"])) == [1000] * 3


def test_sounds_of_very_different_lengths_are_not_filled_up_to_the_longest(tmp_path):
    """One forgotten recording of an hour would fill the memory with silence."""
    write_sound(tmp_path / "s0.wav", tone(12))
    write_sound(tmp_path / "s1.wav", tone(0.1))
    splits, extractor = read(tmp_path), Wav2Vec2FeatureExtractor(sampling_rate=RATE)
    set_length(splits, "audio", extractor, None)
    assert extractor.max_seconds == 10


def test_length_of_the_sounds_is_saved_with_the_extractor(tmp_path):
    """Used on its own later, the model would read sounds of another length than in training."""
    extractor = Wav2Vec2FeatureExtractor(sampling_rate=RATE)
    extractor.max_seconds = 0.5
    extractor.save_pretrained(tmp_path)
    assert Wav2Vec2FeatureExtractor.from_pretrained(tmp_path).max_seconds == 0.5


def test_sounds_of_another_rate_are_resampled(tmp_path):
    """Without resampling they would sound an octave higher."""
    write_sound(tmp_path / "s0.wav", tone(0.1))
    write_sound(tmp_path / "s1.wav", tone(0.1, 2 * RATE), 2 * RATE)
    model = AutoModelForAudioClassification.from_pretrained(write_sound_model(tmp_path / "model"))
    extractor = Wav2Vec2FeatureExtractor(sampling_rate=RATE, max_seconds=0.1)
    made = with_inputs(read(tmp_path)["train"], SOUNDS, extractor, model)
    own, other = map(np.array, made["input_values"])
    assert own.shape == other.shape == (800,)
    np.testing.assert_allclose(own[50:-50], other[50:-50], atol=0.05)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: write_sound(path, np.zeros(0)), "`audio` must have samples, got none at item 1"),
        (lambda path: path.write_bytes(b"RIFF and no more"), "item 1 must be a sound that can be read, got"),
    ],
)  # fmt: skip
def test_sounds_that_cannot_be_read_are_named(write, message, tmp_path):
    """A page of traceback from a worker names no file."""
    write_sound(tmp_path / "s0.wav", tone(0.1))
    write(tmp_path / "s1.wav")
    splits = read(tmp_path)
    extractor = Wav2Vec2FeatureExtractor(sampling_rate=RATE, max_seconds=0.1)
    with pytest.raises(ValueError, match=message):
        with_inputs(splits["train"], SOUNDS, extractor, small_wav2vec2())
    with pytest.raises(ValueError, match=message):
        set_length(splits, "audio", extractor, None)
