"""The paper in naive float64 loops, with which the library is compared.

Written from the paper and not from the library, in probabilities and not in logs, one item,
annotator and class at a time. Nothing here is fast, and nothing here imports `hf_maxmig`.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

Curve = Callable[[Tensor], Tensor]

# Table 1 as printed: df(K) and f*(df(K)), as functions of K.
TABLE_1: dict[str, tuple[Curve, Curve]] = {
    "kl": (lambda K: 1 + torch.log(K), lambda K: K),
    "pearson": (lambda K: 2 * (K - 1), lambda K: K**2 - 1),
    "jensen_shannon": (
        lambda K: torch.log(2 * K / (1 + K)),
        lambda K: -torch.log(2 / (1 + K)),
    ),
}

# Table 1, column 2, of a Python number; t log t is 0 at t = 0.
F: dict[str, Callable[[float], float]] = {
    "kl": lambda t: t * math.log(t) if t > 0 else 0.0,
    "pearson": lambda t: (t - 1) ** 2,
    "jensen_shannon": lambda t: (
        -(t + 1) * math.log((t + 1) / 2) + (t * math.log(t) if t > 0 else 0.0)
    ),
}


def slope_and_conjugate(f: Curve) -> tuple[Curve, Curve]:
    """Derive both columns from f alone: df(K) = f'(K), and f*(f'(K)) = K f'(K) - f(K)."""

    def slope(K: Tensor) -> Tensor:
        K = K if K.requires_grad else K.detach().requires_grad_()
        return torch.autograd.grad(f(K).sum(), K, create_graph=True)[0]

    return slope, lambda K: K * slope(K) - f(K)


def gain(
    h: Tensor,
    g: Tensor,
    p: Tensor,
    row: tuple[Curve, Curve],
    annotated: Tensor | None = None,
) -> Tensor:
    """Equation 1 over the annotated items, of (N, C), (N, C) and (C,) probabilities; differentiable."""
    assert h.dtype == g.dtype == p.dtype == torch.float64
    reward, penalty = row
    taken = [i for i in range(len(h)) if annotated is None or bool(annotated[i])]
    agree = h.new_zeros(())
    chance = h.new_zeros(())
    for i in taken:
        for j in taken:
            K = h.new_zeros(())
            for c in range(len(p)):
                K = K + h[i, c] * g[j, c] / p[c]
            if i == j:
                agree = agree + reward(K)
            else:
                chance = chance + penalty(K)
    return agree / len(taken) - chance / (len(taken) * (len(taken) - 1))


def gain_of_blends(
    h: Tensor,
    g: Tensor,
    p: Tensor,
    row: tuple[Curve, Curve],
    share: float,
    partner: list[int],
    annotated: Tensor | None = None,
) -> Tensor:
    """The gain where row i of h is a blend of item i, with weight `share`, and item `partner[i]`; differentiable."""
    assert h.dtype == g.dtype == p.dtype == torch.float64
    reward, penalty = row
    taken = [i for i in range(len(h)) if annotated is None or bool(annotated[i])]
    agree, chance = [], []
    for i in taken:
        j = partner[i]
        if j not in taken:
            continue
        K = [
            sum((h[i, c] * g[k, c] / p[c] for c in range(len(p))), h.new_zeros(()))
            for k in range(len(h))
        ]
        agree.append(share * reward(K[i]) + (1 - share) * reward(K[j]))
        chance += [penalty(K[k]) for k in taken if k not in (i, j)]
    return torch.stack(agree).mean() - torch.stack(chance).mean()


def aggregate(weight: Tensor, p: Tensor, annotators: Tensor, annotations: Tensor) -> Tensor:
    """Softmax of sum_m W^m e(y^m) + log p, as (B, C) probabilities."""
    W, num_classes = weight.tolist(), len(p)
    rows = []
    for who, what in zip(annotators.tolist(), annotations.tolist(), strict=True):
        score = [math.log(p[c]) for c in range(num_classes)]
        for m, r in zip(who, what, strict=True):
            if m >= 0 and r >= 0:
                for c in range(num_classes):
                    score[c] += W[m][c][r]
        rows.append(_normalize([math.exp(s - max(score)) for s in score]))
    return torch.tensor(rows, dtype=torch.float64)


def forecast(h: Tensor, g: Tensor, p: Tensor) -> Tensor:
    """Normalize(h_c g_c / p_c), as (N, C) probabilities."""
    rows = [
        _normalize([float(h[i, c] * g[i, c] / p[c]) for c in range(len(p))]) for i in range(len(h))
    ]
    return torch.tensor(rows, dtype=torch.float64)


def vote_share(annotations: Tensor, num_classes: int) -> Tensor:
    """Q (Appendix B.2) over the labels given; zeros for items without labels."""
    rows = []
    for what in annotations.tolist():
        given = [r for r in what if r >= 0]
        rows.append([given.count(c) / max(1, len(given)) for c in range(num_classes)])
    return torch.tensor(rows, dtype=torch.float64)


def confusion_counts(
    posterior: Tensor, annotators: Tensor, annotations: Tensor, num_annotators: int
) -> Tensor:
    """sum_i posterior_ic 1(y_i^m = r), as (M, C, C)."""
    C = posterior.shape[1]
    counts = torch.zeros(num_annotators, C, C, dtype=torch.float64)
    for i in range(len(posterior)):
        for m, r in zip(annotators[i].tolist(), annotations[i].tolist(), strict=True):
            if m >= 0 and r >= 0:
                for c in range(C):
                    counts[m, c, r] += float(posterior[i, c])
    return counts


def confusion(counts: Tensor, smoothing: float = 0.0) -> Tensor:
    """Rows of counts divided by their sum; uniform where the sum is zero."""
    matrix = torch.zeros_like(counts, dtype=torch.float64)
    M, C, _ = counts.shape
    for m in range(M):
        for c in range(C):
            total = sum(float(counts[m, c, r]) + smoothing for r in range(C))
            for r in range(C):
                top = float(counts[m, c, r]) + smoothing
                matrix[m, c, r] = top / total if total > 0 else 1 / C
    return matrix


def initial_weight(
    annotators: Tensor, annotations: Tensor, num_annotators: int, num_classes: int, smoothing: float
) -> Tensor:
    """Equation 2, straight from the labels; both sums over the items that annotator m labelled, zeros if none."""
    annotations = torch.where(annotators >= 0, annotations, -1)
    Q = vote_share(annotations, num_classes).tolist()
    weight = torch.zeros(num_annotators, num_classes, num_classes, dtype=torch.float64)
    for m in range(num_annotators):
        own = [
            (i, r)
            for i, (who, what) in enumerate(
                zip(annotators.tolist(), annotations.tolist(), strict=True)
            )
            for n, r in zip(who, what, strict=True)
            if n == m and r >= 0
        ]
        for c in range(num_classes):
            for r in range(num_classes):
                top = sum(Q[i][c] for i, said in own if said == r) + smoothing
                bottom = sum(Q[i][c] for i, _ in own) + num_classes * smoothing
                weight[m, c, r] = math.log(top / bottom) if own else 0.0
    return weight


def f_divergence(u: Tensor, v: Tensor, f: Callable[[float], float]) -> float:
    """sum_s v(s) f(u(s) / v(s)), of two tables of the same shape with v > 0."""
    assert u.shape == v.shape
    return math.fsum(
        b * f(a / b) for a, b in zip(u.flatten().tolist(), v.flatten().tolist(), strict=True)
    )


def product_of_marginals(joint: Tensor) -> Tensor:
    """V of a finite joint U: (X, Y)."""
    X, Y = joint.shape
    of_x = [math.fsum(joint[x].tolist()) for x in range(X)]
    of_y = [math.fsum(joint[:, y].tolist()) for y in range(Y)]
    return torch.tensor([[a * b for b in of_y] for a in of_x], dtype=torch.float64)


def mutual_information(joint: Tensor, f: Callable[[float], float]) -> float:
    """Sum V f(U / V) of a finite joint U: (X, Y), in nats."""
    return f_divergence(joint, product_of_marginals(joint), f)


def posteriors(
    prior: Tensor, x_given_c: Tensor, y_given_c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Bayes in a finite world where x and y are independent given c.

    Args:
        prior: (C,), P(c).
        x_given_c: (C, X), P(x | c).
        y_given_c: (C, Y), P(y | c).

    Returns:
        (X, C) P(c | x), (Y, C) P(c | y) and (X, Y, C) P(c | x, y).
    """
    C, X, Y = len(prior), x_given_c.shape[1], y_given_c.shape[1]
    h = [_normalize([float(prior[c] * x_given_c[c, x]) for c in range(C)]) for x in range(X)]
    g = [_normalize([float(prior[c] * y_given_c[c, y]) for c in range(C)]) for y in range(Y)]
    zeta = [
        [
            _normalize([float(prior[c] * x_given_c[c, x] * y_given_c[c, y]) for c in range(C)])
            for y in range(Y)
        ]
        for x in range(X)
    ]
    as_tensor = lambda rows: torch.tensor(rows, dtype=torch.float64)  # noqa: E731
    return as_tensor(h), as_tensor(g), as_tensor(zeta)


def _normalize(values: list[float]) -> list[float]:
    total = math.fsum(values)
    return [value / total for value in values]


def shrunk_log_rows(
    counts: list[list[list[float]]], smoothing: float, concentrations: tuple[float, ...]
) -> Tensor:
    """Rows of annotators, drawn towards all of them together with the likeliest concentration: (M, C, C) logs."""
    M, C = len(counts), len(counts[0])
    together = [
        [sum(counts[m][c][r] for m in range(M)) + smoothing for r in range(C)] for c in range(C)
    ]
    together = [[value / sum(row) for value in row] for row in together]

    def likelihood(s: float) -> float:
        found = 0.0
        for m in range(M):
            for c in range(C):
                found += math.lgamma(s) - math.lgamma(s + sum(counts[m][c]))
                for r in range(C):
                    alpha = s * together[c][r]
                    found += math.lgamma(alpha + counts[m][c][r]) - math.lgamma(alpha)
        return found

    best = max(concentrations, key=likelihood)
    rows = torch.tensor(counts, dtype=torch.float64) + smoothing
    rows += best * torch.tensor(together, dtype=torch.float64)
    return (rows / rows.sum(dim=2, keepdim=True)).log()


def annotator_rows(
    h: Tensor,
    W: Tensor,
    votes: list[list[tuple[int, int, float]]],
    groups: list[int],
    rounds: int,
    smoothing: float,
    strengths: tuple[float, ...],
) -> Tensor:
    """Logs of who says what on which class, each vote judged by the others on its item: (M, C, C).

    `votes` has (annotator, class, weight) per item. In each round a vote is also weighed by its own
    annotator's rows. Rows are drawn towards all of them together, for as many votes as predict each vote best.
    """
    M, C = len(W), W.shape[1]
    each = [(i, m, r, q) for i, on_item in enumerate(votes) for m, r, q in on_item]

    def normal(values: list[float]) -> list[float]:
        return [value / sum(values) for value in values]

    def without(i: int, m: int) -> list[float]:
        belief = [float(h[i, c]) for c in range(C)]
        for group in {groups[a] for a, _, _ in votes[i]} - {groups[m]}:
            voice = [vote for vote in votes[i] if groups[vote[0]] == group]
            speakers = len({a for a, _, _ in voice})
            for a, s, q in voice:
                belief = [
                    b * math.exp(float(W[a, c, s]) * q / speakers) for c, b in enumerate(belief)
                ]
        return normal(belief)

    def seen(i: int, m: int, rows: list[list[list[float]]] | None) -> list[float]:
        belief = without(i, m)
        for a, s, q in votes[i]:
            if rows is not None and a == m:
                belief = [b * rows[m][c][s] ** q for c, b in enumerate(belief)]
        return normal(belief)

    def count(rows: list[list[list[float]]] | None) -> list[list[list[float]]]:
        counts = [[[0.0] * C for _ in range(C)] for _ in range(M)]
        for i, m, r, q in each:
            for c, p in enumerate(seen(i, m, rows)):
                counts[m][c][r] += q * p
        return counts

    def together(counts: list[list[list[float]]]) -> list[list[float]]:
        return [
            normal([sum(counts[m][c][r] for m in range(M)) + smoothing for r in range(C)])
            for c in range(C)
        ]

    def drawn(counts: list[list[list[float]]], s: float) -> list[list[list[float]]]:
        pool = together(counts)
        return [
            [
                normal([counts[m][c][r] + smoothing + s * pool[c][r] for r in range(C)])
                for c in range(C)
            ]
            for m in range(M)
        ]

    def foretold(counts: list[list[list[float]]], rows: list[list[list[float]]], s: float) -> float:
        pool, found = together(counts), 0.0
        for i, m, r, q in each:
            own, zeta, chance = seen(i, m, rows), without(i, m), 0.0
            for c in range(C):
                others = max(0.0, counts[m][c][r] - q * own[c])
                total = max(0.0, sum(counts[m][c]) - q * own[c])
                chance += zeta[c] * (others + s * pool[c][r]) / (total + s)
            found += q * math.log(chance)
        return found

    counts, strength = count(None), 1.0
    for step in range(rounds):
        rows = drawn(counts, strength)
        counts = count(rows)
        if step in (rounds // 2, rounds - 1):
            strength = max(strengths, key=lambda s: foretold(counts, rows, s))
    return torch.tensor(drawn(counts, strength), dtype=torch.float64).log()


def _entropy(values: list[float]) -> float:
    return -sum(value * math.log(value) for value in values if value > 0)


def expected_gains(joint: list[list[float]], rows: list[list[float]]) -> tuple[float, float]:
    """What an answer tells: information in nats, and accuracy; of the joint of answers so far and class."""
    after = [
        [row[c] * rows[c][r] for c in range(len(row))] for row in joint for r in range(len(row))
    ]

    def unsure(table: list[list[float]]) -> float:
        return sum(map(_entropy, table)) - _entropy([sum(row) for row in table])

    right = sum(max(row) for row in after) - sum(max(row) for row in joint)
    return unsure(joint) - unsure(after), right


def greedy_questions(
    zeta: list[list[float]],
    rows: list[list[list[float]]],
    budget: float,
    voted: list[list[int]],
    by_accuracy: bool,
    groups: list[int],
    costs: list[float],
    most_per_annotator: int,
    most_per_item: int,
    least: float,
) -> list[tuple[int, int, float, float]]:
    """Ask the best question first, and compute all values anew after each: (item, annotator, two gains)."""
    joint = [[row] for row in zeta]
    barred = [{groups[m] for m in voters} for voters in voted]
    found: list[tuple[int, int, float, float]] = []
    while True:
        best = (0.0, -1, -1, (0.0, 0.0))
        for i in range(len(zeta)):
            for m in range(len(rows)):
                asked = (
                    [i for _, who, _, _ in found if who == m],
                    [1 for j, _, _, _ in found if j == i],
                )
                full = len(asked[0]) >= most_per_annotator or len(asked[1]) >= most_per_item
                if full or groups[m] in barred[i] or costs[m] > budget + 1e-9:
                    continue
                gains = expected_gains(joint[i], rows[m])
                worth = gains[by_accuracy] / costs[m]
                if gains[by_accuracy] >= least and worth > best[0]:
                    best = worth, i, m, gains
        _, i, m, gains = best
        if i < 0:
            return found
        found.append((i, m, *gains))
        joint[i] = [[row[c] * rows[m][c][r] for c in range(len(row))] for row in joint[i] for r in range(len(row))]  # fmt: skip
        barred[i].add(groups[m])
        budget -= costs[m]
