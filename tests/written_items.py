"""Write small data sets of each modality as files, votes of four people on them, and networks that read them."""

import csv
import json
import wave

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    ASTConfig,
    ASTFeatureExtractor,
    ASTForAudioClassification,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
)

WORDS = {"high": ["great", "superb"], "mid": ["fair", "plain"], "low": ["awful", "dull"]}
FILLING = ["the", "film", "was", "a", "rather", "story"]
PITCH = {"high": 1600, "mid": 700, "low": 250}
RATE = 8000


def truth_of(i, called=None):
    truth = ["high", "low", "mid"][i % 3]
    return truth if called is None else called[truth]


def voted(names, truths, people=("ann", "bob", "cyd", "always_low"), low="low"):
    """Return votes of three people who are each right most of the time, and of one who always says low."""
    rng, truths = np.random.default_rng(0), list(truths)
    classes = sorted({*truths})
    rows = []
    for name, truth in zip(names, truths, strict=True):
        for who, right in zip(people, (0.9, 0.8, 0.7), strict=False):
            said = truth if rng.random() < right else classes[rng.integers(len(classes))]
            rows.append((name, who, said))
        rows.append((name, people[-1], low))
    return rows


def write_rows(path, names, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])
    return path


def text_of(i, rng):
    words = [*rng.choice(FILLING, rng.integers(2, 6)), rng.choice(WORDS[truth_of(i)])]
    return " ".join(rng.permutation(words))


def tone_of(i, rng, seconds=0.1, rate=RATE):
    time = np.arange(round(seconds * rate)) / rate
    pitch = PITCH[truth_of(i)] * rng.uniform(0.9, 1.1)
    return 0.5 * np.sin(2 * np.pi * pitch * time) + rng.normal(0, 0.05, len(time))


def write_sound(path, samples, rate=RATE, channels=1):
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return path


def write_texts(folder, number, first=0, name="texts.csv", called=None):
    """Write a table with id, text and gold label."""
    rng = np.random.default_rng(first)
    rows = [(f"t{i}", text_of(i, rng), truth_of(i, called)) for i in range(first, first + number)]
    return write_rows(folder / name, ("id", "text", "label"), rows)


def write_flowers(folder, number, first=0, name="flowers.csv", called=None):
    """Write a table with numbers, one of which is sometimes missing, a category and a gold label."""
    rng = np.random.default_rng(first)
    height = {"high": 2.0, "mid": 1.0, "low": 0.0}
    rows = []
    for i in range(first, first + number):
        truth = truth_of(i)
        petal = "" if i % 10 == 7 else round(height[truth] + rng.normal(0, 0.2), 3)
        colour = {"high": "white", "mid": "violet", "low": "blue"}[truth]
        rows.append((f"f{i}", petal, round(rng.normal(), 3), colour, truth_of(i, called)))
    return write_rows(folder / name, ("id", "petal", "spot", "colour", "label"), rows)


def write_tones(folder, number, first=0, by_class=False):
    """Write a folder of sounds, in one subfolder per class or not."""
    rng = np.random.default_rng(first)
    for i in range(first, first + number):
        place = folder / truth_of(i) if by_class else folder
        write_sound(place / f"r{i:03}.wav", tone_of(i, rng))
    return folder


def write_text_model(folder):
    """Write an untrained network for texts and its tokenizer."""
    words = ["[PAD]", "[UNK]", *FILLING, *(word for words in WORDS.values() for word in words)]
    tokens = Tokenizer(WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokens.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens, pad_token="[PAD]", unk_token="[UNK]", model_max_length=12,
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=12, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_sound_model(folder):
    """Write an untrained network for sounds of a tenth of a second, and its feature extractor."""
    torch.manual_seed(0)
    config = ASTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, patch_size=8,
        frequency_stride=8, time_stride=8, max_length=8, num_mel_bins=16, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    ASTForAudioClassification(config).save_pretrained(folder)
    ASTFeatureExtractor(
        sampling_rate=RATE, num_mel_bins=16, max_length=8, mean=-3.0, std=2.0
    ).save_pretrained(folder)
    return folder


def write_json_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path
