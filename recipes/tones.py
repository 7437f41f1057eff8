"""Tones: sounds and a simulated crowd, made on the machine in under a minute on two cores, with nothing to download.

Data: ten kinds of sounds of half a second, such as a rising tone, a trill or noise, with random pitch, loudness
and background noise; 1,000 to train, 500 to test. The crowd is simulated as for the digits: the ten-class experts of
the paper's Appendix B, with independent mistakes (case 4.1), a naive majority (4.2) or correlated mistakes (4.3),
of high or low expertise.

    accelerate launch recipes/tones.py --output_dir out/tones

prints majority vote, aggregator, classifier and forecaster against the gold labels that training never saw, and
saves the model with its feature extractor: `pipeline("audio-classification", model="out/tones")` takes a sound. The
classifier is a small audio spectrogram transformer, trained from scratch. Expect a classifier accuracy of 1.00; majority
vote is right on 0.69 of the training sounds.

`--write_files DIR` writes sounds and a file of votes instead, to try `maxmig train` on.
"""

import csv
import wave
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from datasets.utils import tqdm
from recipe import SimulatedCrowdArguments, simulated, simulated_recipe
from transformers import ASTConfig, ASTFeatureExtractor, ASTForAudioClassification, set_seed

from hf_maxmig import MaxMIGTrainingArguments
from hf_maxmig.command.flags import start
from hf_maxmig.command.runs import Recipe, run

RATE, SECONDS = 8000, 0.5
CLASSES = [
    "beeps", "chord", "falling", "high", "hiss", "low", "rising", "rumble", "sweep_back", "trill",
]  # fmt: skip
NUM_TRAIN, NUM_TEST = 1000, 500


@dataclass
class TonesArguments(SimulatedCrowdArguments):
    """Which crowd to simulate."""

    write_files: str | None = field(
        default=None,
        metadata={
            "help": "Folder to write sounds and votes to, as a data owner has them, instead of training."
        },
    )


@dataclass
class TonesTrainingArguments(MaxMIGTrainingArguments):
    """What differs from the defaults."""

    # 16 steps per epoch.
    num_train_epochs: float = 40
    # At three times this rate the network is sure before the aggregator is, and two pairs of classes merge (0.80).
    learning_rate: float = 3e-4
    logging_steps: float = 160
    save_strategy: str = "no"


def sound(kind: str, rng: np.random.Generator) -> np.ndarray:
    """Make a sound of a class: (T,) samples in -1..1."""
    time = np.arange(round(RATE * SECONDS)) / RATE
    share = time / SECONDS  # from 0 to 1
    base = 300 * 2 ** rng.uniform(0, 1)
    pitch = {
        "low": np.full_like(time, base),
        "high": np.full_like(time, 5 * base),
        "rising": base * (1 + 3 * share),
        "falling": base * (4 - 3 * share),
        "sweep_back": base * (4 - 6 * np.abs(share - 0.5)),
        "trill": base * (2 + 0.5 * np.sign(np.sin(2 * np.pi * 12 * time))),
        "beeps": np.full_like(time, 2 * base),
        "chord": np.full_like(time, base),
    }
    if kind in ("hiss", "rumble"):
        noise = rng.normal(size=time.size)
        smooth = np.convolve(noise, np.ones(24) / 24, "same")
        made = noise - smooth if kind == "hiss" else 3 * smooth
    else:
        phase = 2 * np.pi * np.cumsum(pitch[kind]) / RATE + rng.uniform(0, 2 * np.pi)
        made = np.sin(phase)
        if kind == "chord":
            made = (made + np.sin(2.5 * phase) + np.sin(4.5 * phase)) / 2
        if kind == "beeps":
            made = made * (np.sin(2 * np.pi * 8 * time) > 0)
    made = 10 ** rng.uniform(-1, -0.3) * made + rng.normal(0, 0.01, time.size)
    return made.clip(-1, 1).astype(np.float32)


def sounds() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Make all sounds, the same ones each time: (N, T) samples and (N,) labels by split."""
    rng = np.random.default_rng(0)
    made = {}
    for split, number in (("train", NUM_TRAIN), ("test", NUM_TEST)):
        labels = rng.permutation(np.arange(number) % len(CLASSES))
        made[split] = np.stack([sound(CLASSES[c], rng) for c in labels]), labels
    return made


def tones(
    arguments: TonesArguments, seed: int, extractor: ASTFeatureExtractor | None = None
) -> DatasetDict:
    """Make the sounds, turn them into spectrograms, and let a simulated crowd label them."""
    splits = {}
    for split, (samples, labels) in sounds().items():
        columns = {"label": labels}
        features = Features(label=ClassLabel(names=CLASSES))
        if extractor is not None:
            made = extractor(list(samples), sampling_rate=RATE, return_tensors="np")["input_values"]
            columns["input_values"] = made.astype(np.float32)
            features["input_values"] = List(List(Value("float32")))
        splits[split] = Dataset.from_dict(columns, features=features)
    return simulated(DatasetDict(splits), "cifar10", arguments, seed)


def write_sound(path: Path, samples: np.ndarray) -> None:
    """Write a WAV of 16 bits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples * 32767).astype("<i2").tobytes())


def write_files(data: DatasetDict, folder: Path) -> None:
    """Write sounds, test sounds in a folder for each class, and votes in a long table."""
    for split, (samples, labels) in sounds().items():
        for i, one in enumerate(tqdm(samples, desc=f"Writing {split}")):
            place = folder / split / (CLASSES[labels[i]] if split == "test" else "")
            write_sound(place / f"sound_{i:04}.wav", one)
    train = data["train"]
    names = train.features["annotators"].feature.names
    with (folder / "votes.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["sound", "worker", "label"])
        for i, row in enumerate(train):
            for m, r in zip(row["annotators"], row["annotations"], strict=True):
                writer.writerow([f"sound_{i:04}.wav", names[m], CLASSES[r]])


def network() -> tuple[ASTForAudioClassification, ASTFeatureExtractor]:
    """Make an untrained network for 48 frames of 16 bands, and the feature extractor that makes these."""
    # A patch has all bands of 16 frames, so that a network from scratch learns in few steps.
    config = ASTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, patch_size=16,
        frequency_stride=16, time_stride=8, max_length=48, num_mel_bins=16, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, id2label=dict(enumerate(CLASSES)),
    )  # fmt: skip
    # Mean and spread of the logarithms of these sounds, so that inputs are about -1 to 1.
    extractor = ASTFeatureExtractor(
        sampling_rate=RATE, num_mel_bins=16, max_length=48, mean=-0.7, std=1.3
    )
    return ASTForAudioClassification(config), extractor


def recipe(arguments: TonesArguments, training: TonesTrainingArguments) -> Recipe:
    set_seed(training.seed)
    classifier, extractor = network()
    data = tones(arguments, training.seed, extractor)
    return simulated_recipe("tones", data, arguments, training, classifier, extractor)


def build(arguments: TonesArguments, training: TonesTrainingArguments) -> Recipe | None:
    if arguments.write_files is not None:
        write_files(tones(arguments, training.seed), Path(arguments.write_files))
        return None
    return recipe(arguments, training)


def main(arguments: TonesArguments, training: TonesTrainingArguments) -> dict[str, float]:
    built = build(arguments, training)
    return {} if built is None else run(built)


if __name__ == "__main__":
    start(build, run)
