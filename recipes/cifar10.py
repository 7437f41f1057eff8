r"""CIFAR-10: ten classes of small pictures, labelled by the paper's experts or by three people each.

Data: Krizhevsky, "Learning multiple layers of features from tiny images", 2009,
https://www.cs.toronto.edu/~kriz/cifar.html (no licence stated; to be cited). 50,000 pictures to
train, 10,000 to test, 32 x 32. `--data_dir` is a folder with `cifar-10-batches-py`, with
`train.parquet` and `test.parquet`, or with `train/<class>/` and `test/<class>/`; without it they
come from the Hub, `uoft-cs/cifar10`.

    accelerate launch recipes/cifar10.py --output_dir out/cifar10

The crowd is simulated: the experts of the paper's Appendix B, `--case` and `--expertise`. VGG-16
from scratch, no augmentation, for an accelerator: it has not been run to its end here yet (the
paper: 86.71 %, the forecaster on test items 99.06 %). `--preset paper_cifar10` runs the paper's
protocol.

    accelerate launch recipes/cifar10.py --content features --data_dir DIR --output_dir out/cifar10

From given features, `features_*_{train,test}.npy` with `labels_{train,test}.txt`, in two minutes on
two cores. What to expect depends on the features: of a frozen EfficientNet-Lite0's first 128 principal
components at 96 px, a classifier accuracy of 0.75, which is also what gold labels give.

    accelerate launch recipes/cifar10.py --crowd human --human_file CIFAR-10_human.pt \
        --output_dir out/cifar10n

CIFAR-10N: Wei et al., "Learning with noisy labels revisited", ICLR 2022, http://noisylabels.com (CC
BY-NC 4.0): three labels a picture, right on 82 %, their three places taken for three annotators.
From the same features expect a classifier accuracy of 0.75 (not in the paper). Nobody labelled the
test items.
"""

from dataclasses import dataclass, field
from typing import Literal

from recipe import SimulatedCrowdArguments, simulated, simulated_recipe
from transformers import ViTImageProcessor, set_seed

from hf_maxmig import (
    VGG16,
    HeadClassifier,
    HeadConfig,
    MaxMIGTrainingArguments,
    VGG16Config,
    cifar10,
)
from hf_maxmig.command.flags import start
from hf_maxmig.command.runs import Recipe, run
from hf_maxmig.data.named.pictures import cifar10n


@dataclass
class CIFAR10Arguments(SimulatedCrowdArguments):
    """Where the data is, what stands for a picture, and who labelled it."""

    data_dir: str | None = field(
        default=None, metadata={"help": "Folder with CIFAR-10; from the Hub if not given."}
    )
    content: Literal["images", "features"] = field(
        default="images", metadata={"help": "VGG-16 on the pictures, or a head on given features."}
    )
    crowd: Literal["simulated", "human"] = field(
        default="simulated", metadata={"help": "The paper's experts, or the people of CIFAR-10N."}
    )
    human_file: str | None = field(
        default=None, metadata={"help": "CIFAR-10_human.pt, for `--crowd human`."}
    )

    def __post_init__(self) -> None:
        if (self.crowd == "human") != (self.human_file is not None):
            raise ValueError(
                "`human_file` must be given with `--crowd human`, and only then, got "
                f"{self.human_file} with {self.crowd}."
            )


@dataclass
class CIFAR10TrainingArguments(MaxMIGTrainingArguments):
    """What differs from the defaults."""

    num_train_epochs: float | None = field(
        default=None, metadata={"help": "Default: 50 for pictures, the paper's; 10 for features."}
    )
    # A head is a small network: larger batches take fewer steps, and the gain compares more items.
    per_device_train_batch_size: int | None = field(
        default=None,
        metadata={"help": "Default: 64 for pictures, the paper's; 256 for features."},
    )
    save_strategy: str = "no"


def recipe(arguments: CIFAR10Arguments, training: CIFAR10TrainingArguments) -> Recipe:
    epochs, batch_size = (50, 64) if arguments.content == "images" else (10, 256)
    if training.num_train_epochs is None:
        training.num_train_epochs = epochs
    if training.per_device_train_batch_size is None:
        training.per_device_train_batch_size = batch_size
    set_seed(training.seed)
    data = cifar10(arguments.data_dir, content=arguments.content)
    if arguments.crowd == "human":
        data = cifar10n(data, arguments.human_file)
    else:
        data = simulated(data, "cifar10", arguments, training.seed)
    names = dict(enumerate(data["train"].features["label"].names))
    if arguments.content == "images":
        classifier = VGG16(VGG16Config(id2label=names))
        processor = ViTImageProcessor(size={"height": 32, "width": 32})
    else:
        size = data["train"].features["features"].length
        classifier = HeadClassifier(HeadConfig(input_size=size, hidden_size=256, id2label=names))
        processor = None
    human, features = arguments.crowd == "human", arguments.content == "features"
    name = ("cifar10n" if human else "cifar10") + ("_features" if features else "")
    made = simulated_recipe(name, data, arguments, training, classifier, processor)
    if human:
        made.setting.update(case=None, expertise=None)
    return made


def main(arguments: CIFAR10Arguments, training: CIFAR10TrainingArguments) -> dict[str, float]:
    return run(recipe(arguments, training))


if __name__ == "__main__":
    start(recipe, run)
