"""The command `maxmig`: one verb per job. The imports of a verb happen when it is called.

    maxmig describe votes.csv
    maxmig train --votes votes.csv --train_dir photos --model_name_or_path microsoft/resnet-18 --output_dir out
    accelerate launch -m hf_maxmig.cli train ...
    torchrun --nproc_per_node 2 -m hf_maxmig.cli train ...

This file imports nothing of the package by itself: the installed command (`maxmig.py`) reads it before the package,
whose import takes seconds.
"""

import difflib
import runpy
import sys
from importlib import import_module
from pathlib import Path

VERBS = {  # each has a file in `command/` with a `main`
    "describe": "tell what a file of votes looks like, before anything is trained",
    "train": "train a classifier on items and votes, and report on both",
    "report": "write the report on annotators and labels for a saved model and data with votes",
    "relabel": "clean the labels of data by a saved model",
    "ask": "choose which item to ask whom next",
    "update": "take new votes and new annotators into a saved model, without training",
    "card": "write the card of a saved model",
    "demo": "open a page to try a saved model, and to check and correct labels",
}
_HELP = """\
usage: maxmig VERB ...

Learn from many people's labels of the same data when nobody knows the truth.

verbs:
{verbs}

`maxmig VERB --help` lists the flags of a verb. `maxmig --version` tells the version.
On several devices: accelerate launch -m hf_maxmig.cli train ..."""


def main(arguments: list[str] | None = None) -> None:
    """Run a verb; an error in its flags or files is printed in one line, with exit code 2.

    Args:
        arguments: a verb and its flags; those of the command line by default.
    """
    verb, *flags = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if verb in ("-h", "--help"):
        print(_HELP.format(verbs="\n".join(f"  {name:<10}{what}" for name, what in VERBS.items())))
    elif verb == "--version":
        version = runpy.run_path(str(Path(__file__).with_name("model") / "version.py"))
        print(f"maxmig {version['__version__']}")
    elif verb in VERBS:
        import_module(f"hf_maxmig.command.{verb}").main(flags)
    else:
        near = difflib.get_close_matches(verb, VERBS, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        print(
            f"maxmig: error: the verb must be one of {', '.join(VERBS)}, got {verb!a}{hint}.",
            file=sys.stderr,
        )
        raise SystemExit(2)


if __name__ == "__main__":
    main()
