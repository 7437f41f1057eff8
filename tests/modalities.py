"""One row per modality: tiny models, their processors, raw items as users have them, and votes on items.

A contract that holds for pictures must hold for texts, sounds and table rows. Tests of a contract are
parametrised with these rows.
"""

import io
import wave
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Audio, Dataset, Image, concatenate_datasets
from PIL import Image as Picture
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForAudioClassification,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ResNetConfig,
    ResNetModel,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForSequenceClassification,
    Wav2Vec2Model,
)
from transformers.modeling_outputs import ImageClassifierOutput

from hf_maxmig import (
    AudioHeadClassifier,
    HeadClassifier,
    MaxMIGModel,
    TableClassifier,
    TextHeadClassifier,
    fitted_table_processor,
)
from tests.networks import draw_crowd
from tests.worlds import ANNOTATORS, CLASSES, make_crowd

RATE = 2_000  # samples per second of the tiny network
WORDS = [["cat", "purrs", "milk"], ["dog", "barks", "bone"], ["emu", "runs", "seed"]]
SMALL = {
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "initializer_range": 0.5,
}


class Modality(NamedTuple):
    """The items of one modality, and what reads them."""

    name: str  # of the column of items, and of an item's part; a row has its own columns
    task: str
    auto_class: Any
    processor: Callable[[], Any]
    native: Callable[[], PreTrainedModel]  # a classifier of transformers; of rows, a user's own
    encoder: Callable[[], PreTrainedModel] | None
    head: Any
    item: Callable[[int, np.random.Generator], Any]  # an item of a class, as stored in a data set
    adapted: list[str]  # layers for LoRA

    def __repr__(self) -> str:
        return self.name

    def on_encoder(self, **fields: Any) -> PreTrainedModel:
        """Put a head on the frozen encoder, or make one for the processor's features."""
        torch.manual_seed(0)
        fields = {"id2label": dict(enumerate(CLASSES)), "hidden_size": 16, "dropout": 0.0, **fields}
        if self.encoder is None:
            return self.head(self.head.config_class(input_size=self.processor().size, **fields))
        encoder = self.encoder()
        return self.head.from_encoder(encoder, input_size=8, **fields)

    def model(self, head: bool = True) -> MaxMIGModel:
        """Return a model of a head on the frozen encoder, or of a classifier of transformers."""
        torch.manual_seed(0)
        classifier = self.on_encoder() if head else self.native()
        names = dict(enumerate(CLASSES))
        return draw_crowd(MaxMIGModel.from_classifier(classifier, annotators=ANNOTATORS, id2label=names)).eval()  # fmt: skip

    def crowd(self, num_items: int = 90) -> Dataset:
        """Return items whose class is visible, and votes on them; sounds and pictures are not decoded."""
        votes = make_crowd(num_items).remove_columns("features")
        rng = np.random.default_rng(1)
        items = Dataset.from_list([self.parts(self.item(c, rng)) for c in votes["label"]])
        if self.name in UNOPENED:
            items = items.cast_column(self.name, UNOPENED[self.name])
        return concatenate_datasets([items, votes], axis=1)

    def parts(self, item: Any) -> dict[str, Any]:
        """Return an item as a dict of its parts, as a data set's columns hold it and a pipeline takes it."""
        return item if self.name == "row" else {self.name: item}

    def raw(self, number: int = 4) -> list[Any]:
        """Return items as users pass them to a pipeline."""
        rng = np.random.default_rng(2)
        stored = [self.item(n % len(CLASSES), rng) for n in range(number)]
        if self.name == "image":
            return [Picture.open(io.BytesIO(item["bytes"])) for item in stored]
        return stored

    def prepared(self, dataset: Dataset) -> Dataset:
        """Turn the items into the processor's inputs, as a user does before training without features."""
        processor = self.processor()
        if self.name == "row":
            return dataset
        if self.name == "image":
            return dataset.cast_column("image", Image())
        if self.name == "text":
            return dataset.map(lambda row: dict(processor(row["text"])), remove_columns="text")

        def read(row: dict[str, Any]) -> dict[str, Any]:
            made = processor(samples(row["audio"]["bytes"]), sampling_rate=RATE)
            return {name: value[0] for name, value in made.items()}

        return dataset.map(read, remove_columns="audio")


UNOPENED = {"image": Image(decode=False), "audio": Audio(decode=False)}


def samples(stored: bytes) -> np.ndarray:
    """Return the samples in a file of `item_of_sound`."""
    with wave.open(io.BytesIO(stored), "rb") as file:
        frames = file.readframes(file.getnframes())
    return np.frombuffer(frames, dtype="<i2").astype("float32") / 2**15


# Items


def item_of_picture(label: int, rng: np.random.Generator) -> dict[str, Any]:
    pixels = rng.integers(0, 90, size=(20, 16, 3))
    pixels[..., label] += 160
    file = io.BytesIO()
    Picture.fromarray(pixels.astype("uint8")).save(file, format="PNG")
    return {"bytes": file.getvalue(), "path": None}


def item_of_text(label: int, rng: np.random.Generator) -> str:
    of_any = [word for words in WORDS for word in words]
    words = [*rng.choice(WORDS[label], size=3), *rng.choice(of_any, size=rng.integers(3))]
    return " ".join(words)


def item_of_sound(label: int, rng: np.random.Generator) -> dict[str, Any]:
    times = np.arange(rng.integers(300, 500)) / RATE
    heard = np.sin(2 * np.pi * (60, 200, 600)[label] * times) / 2
    heard += rng.normal(size=len(times)) / 20
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, RATE, 0, "NONE", None))
        sound.writeframes((heard * 2**14).astype("<i2").tobytes())
    return {"bytes": file.getvalue(), "path": None}


def item_of_table(label: int, rng: np.random.Generator) -> dict[str, Any]:
    weight = (4.0, 20.0, 36.0)[label] + rng.normal() * 2
    return {
        "weight": None if rng.random() < 0.1 else weight,
        "legs": (4, 4, 2)[label],
        "sound": str(rng.choice(WORDS[label])),
        "tame": bool(rng.random() < (0.5, 0.9, 0.1)[label]),
    }


# What reads the items


def tokenizer() -> PreTrainedTokenizerFast:
    words = ["[PAD]", "[UNK]", *(word for words in WORDS for word in words)]
    made = Tokenizer(WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]")


def bert(**fields: Any) -> BertConfig:
    return BertConfig(hidden_size=8, vocab_size=11, max_position_embeddings=12, num_labels=3, **SMALL, **fields)  # fmt: skip


def wav2vec2(**fields: Any) -> Wav2Vec2Config:
    return Wav2Vec2Config(
        hidden_size=8, conv_dim=(8, 8), conv_kernel=(8, 4), conv_stride=(4, 2), feat_extract_norm="layer",
        num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, num_labels=3,
        do_stable_layer_norm=True, classifier_proj_size=8, mask_time_prob=0.0, mask_feature_prob=0.0, **SMALL, **fields,
    )  # fmt: skip


def extractor() -> Wav2Vec2FeatureExtractor:
    return Wav2Vec2FeatureExtractor(sampling_rate=RATE, return_attention_mask=True)


def small_vit() -> ViTForImageClassification:
    return ViTForImageClassification(
        ViTConfig(hidden_size=8, image_size=16, patch_size=8, num_labels=3, **SMALL)
    )


class RowConfig(PreTrainedConfig):
    """The config of a user's own classifier of rows."""

    model_type = "own_rows"
    input_size: int = 1


class RowModel(PreTrainedModel):
    """A user's own classifier of rows, as its author would write it; transformers has none."""

    config_class = RowConfig

    def __init__(self, config: RowConfig) -> None:
        super().__init__(config)
        self.inside = nn.Bilinear(config.input_size, config.input_size, 4)
        self.out = nn.Linear(4, config.num_labels)
        self.post_init()

    def forward(self, features=None, labels=None, return_dict=None) -> ImageClassifierOutput:
        """Classify (B, D) features."""
        return ImageClassifierOutput(logits=self.out(self.inside(features, features).tanh()))


AutoConfig.register("own_rows", RowConfig, exist_ok=True)
AutoModel.register(RowConfig, RowModel, exist_ok=True)

IMAGE = Modality(
    name="image",
    task="image-classification",
    auto_class=AutoModelForImageClassification,
    processor=lambda: ViTImageProcessor(size={"height": 16, "width": 16}),
    native=small_vit,
    encoder=lambda: ResNetModel(
        ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="basic")
    ),
    head=HeadClassifier,
    item=item_of_picture,
    adapted=["q_proj", "v_proj"],
)
TEXT = Modality(
    name="text",
    task="text-classification",
    auto_class=AutoModelForSequenceClassification,
    processor=tokenizer,
    native=lambda: BertForSequenceClassification(bert()),
    encoder=lambda: BertModel(bert()),
    head=TextHeadClassifier,
    item=item_of_text,
    adapted=["query", "value"],
)
AUDIO = Modality(
    name="audio",
    task="audio-classification",
    auto_class=AutoModelForAudioClassification,
    processor=extractor,
    native=lambda: Wav2Vec2ForSequenceClassification(wav2vec2()),
    encoder=lambda: Wav2Vec2Model(wav2vec2()),
    head=AudioHeadClassifier,
    item=item_of_sound,
    adapted=["q_proj", "v_proj"],
)
TABLE = Modality(
    name="row",
    task="tabular-classification",
    auto_class=AutoModel,
    processor=lambda: fitted_table_processor(TABLE.crowd()),
    native=lambda: RowModel(RowConfig(input_size=TABLE.processor().size, num_labels=3)),
    encoder=None,
    head=TableClassifier,
    item=item_of_table,
    adapted=["fc"],
)
MODALITIES = [IMAGE, TEXT, AUDIO]  # those with encoders

__all__ = ["AUDIO", "IMAGE", "MODALITIES", "RATE", "TABLE", "TEXT", "Modality", "samples"]
