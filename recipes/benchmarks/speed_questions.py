"""Choose questions at a size: time, and peak memory of the whole process.

    python recipes/benchmarks/speed_questions.py --threads 2

prints one line of JSON for 1,000,000 items, 1,000 annotators, 8 classes and five votes on each item, with a budget of
10,000 questions; `--most_per_annotator 20` also keeps to a limit. No data is needed: forecasts are drawn, from nearly
certain to nearly even, and annotators from right to random. Expect under 60 s on two cores that nothing else uses, and
under 2 GiB, of which the drawn world itself takes the half.
"""

import argparse
import json
import resource
import time

import torch
from torch import Tensor

from hf_maxmig import choose_questions
from hf_maxmig.model.votes import Votes


def drawn(items: int, annotators: int, classes: int, votes: int) -> tuple[Tensor, Tensor, Votes]:
    """Draw forecasts (N, C) and rows (M, C, C), both as logs, and who has voted on what."""
    generator = torch.Generator().manual_seed(0)
    spread = torch.rand(items, 1, generator=generator) * 0.5 + 0.02
    forecast = torch._standard_gamma(spread.expand(items, classes), generator=generator) + 1e-30
    skill = torch.rand(annotators, 1, 1, generator=generator)
    other = torch.randn(annotators, classes, classes, generator=generator).softmax(dim=2)
    rows = 0.98 * (skill * torch.eye(classes) + (1 - skill) * other) + 0.02 / classes
    who = torch.randint(annotators, (items, votes), generator=generator)
    said = torch.randint(classes, (items, votes), generator=generator)
    return (
        (forecast / forecast.sum(dim=1, keepdim=True)).log(),
        rows.log(),
        Votes(who, said),
    )


def main(arguments: list[str] | None = None) -> None:
    """Measure once, in this process, and print what was found.

    Args:
        arguments: the command line.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for flag, default in (("items", 1_000_000), ("annotators", 1000), ("classes", 8), ("votes", 5)):
        parser.add_argument(f"--{flag}", type=int, default=default)
    parser.add_argument("--budget", type=int, default=10_000)
    parser.add_argument("--most_per_annotator", type=int)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    forecast, rows, votes = drawn(given.items, given.annotators, given.classes, given.votes)
    wall, processor = time.perf_counter(), time.process_time()
    asked = choose_questions(
        forecast, rows, given.budget, votes, most_per_annotator=given.most_per_annotator
    )
    found = {
        "questions": len(asked.item),
        "people": len(asked.annotator.unique()),
        "nats": round(float(asked.information.sum()), 1),
        "seconds": round(time.perf_counter() - wall, 3),
        "processor_seconds": round(time.process_time() - processor, 3),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps(vars(given) | found))


if __name__ == "__main__":
    main()
