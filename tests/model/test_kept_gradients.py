"""Tests of `hf_maxmig.model.kept_gradients`: tables are read as by `embedding`, and gradients reuse their memory."""

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from hf_maxmig.model import kept_gradients as module_under_test
from hf_maxmig.model.aggregators import AGGREGATORS
from hf_maxmig.model.kept_gradients import TableRows
from hf_maxmig.peers import doctor_net
from hf_maxmig.peers.annotator_matrices import AnnotatorMatrices
from hf_maxmig.peers.doctor_net import AnnotatorHeads

R, D = 6, 3
every_index = pytest.mark.parametrize(
    "index",
    [torch.tensor([4, 0, 4]), torch.tensor([[1, 5], [1, 1]]), torch.tensor(2), torch.zeros(0, 2).long()],
    ids=["1-d", "2-d", "one", "none"],
)  # fmt: skip


@pytest.fixture(autouse=True)
def every_table_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_under_test, "LARGE", 1)
    monkeypatch.setattr(doctor_net, "FEW", 0)


def some_table(dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(R, D, generator=generator, dtype=dtype).requires_grad_()


def gradient(read: Callable[[Tensor, Tensor], Tensor], index: Tensor, table: Tensor) -> Tensor:
    """Return the gradient of a sum of squares, which differs from row to row."""
    return torch.autograd.grad(read(index, table).square().sum(), table)[0]


@every_index
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_as_embedding(index: Tensor, dtype: torch.dtype) -> None:
    table, read = some_table(dtype), TableRows()
    for _ in range(3):  # in fresh memory, and in used memory
        assert torch.equal(read(index, table), embedding(index, table))
        assert torch.equal(gradient(read, index, table), gradient(embedding, index, table))


def test_memory_is_used_again_and_what_lay_there_is_gone() -> None:
    table, read = some_table(), TableRows()
    first = gradient(read, torch.tensor([4, 0]), table)
    place = first.data_ptr()
    first.fill_(torch.nan)  # clipping and optimizers may write into gradients
    del first
    second = gradient(read, torch.tensor([1]), table)
    assert second.data_ptr() == place
    assert torch.equal(second, gradient(embedding, torch.tensor([1]), table))


@pytest.mark.parametrize(
    "part", [lambda g: g, lambda g: g[2:], lambda g: g.detach(), lambda g: g.T]
)
def test_what_somebody_holds_is_left_alone(part: Callable[[Tensor], Tensor]) -> None:
    table, read = some_table(), TableRows()
    held = part(gradient(read, torch.tensor([4, 0]), table))
    before = held.clone()
    for index in (1, 2, 3):
        gradient(read, torch.tensor([index]), table)
    assert torch.equal(held, before)


def test_gradients_accumulate() -> None:
    mine, plain = some_table(), some_table()
    read = TableRows()
    for _ in range(2):  # gradient accumulation cycles
        for index in (torch.tensor([4, 0]), torch.tensor([4, 1]), torch.tensor([2])):
            read(index, mine).square().sum().backward()
            embedding(index, plain).square().sum().backward()
        assert mine.grad is not None
        assert plain.grad is not None
        assert torch.equal(mine.grad, plain.grad)
        mine.grad = plain.grad = None


def test_tables_of_two_sizes_have_their_own_memory() -> None:
    table, read = some_table(), TableRows()
    other = table.detach()[:2].double().requires_grad_()
    places = [
        [gradient(read, torch.tensor([1]), some).data_ptr() for some in (table, other)]
        for _ in range(2)
    ]
    assert places[0] == places[1]
    assert places[0][0] != places[0][1]


def test_gradient_has_a_gradient() -> None:
    table, read = some_table(torch.float64), TableRows()
    index = torch.tensor([[4, 0], [4, 1]])
    assert torch.autograd.gradcheck(lambda t: read(index, t).square(), [table])
    assert torch.autograd.gradgradcheck(lambda t: read(index, t) ** 3, [table])


@pytest.mark.parametrize("copied", ["deepcopy", "pickle", "torch.save"])
def test_copies_have_no_memory(copied: str) -> None:
    read = TableRows()
    grad = gradient(read, torch.tensor([4]), some_table())
    place = grad.data_ptr()
    del grad
    if copied == "deepcopy":
        other = copy.deepcopy(read)
    elif copied == "pickle":
        other = pickle.loads(pickle.dumps(read))
    else:
        file = io.BytesIO()
        torch.save(read, file)
        other = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    held = gradient(other, torch.tensor([4]), some_table())
    assert held.data_ptr() != place
    assert gradient(read, torch.tensor([4]), some_table()).data_ptr() == place


def test_no_gradient_no_memory() -> None:
    table, read = some_table(), TableRows()
    with torch.no_grad():
        rows = read(torch.tensor([4]), table)
    assert not rows.requires_grad
    assert not read(torch.tensor([4]), table.detach()).requires_grad
    assert not vars(read)["_kept"]


def test_small_tables_are_read_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reusing memory costs a tenth of a millisecond, a third of the time of a small aggregator."""
    table, read = some_table(), TableRows()
    for large, kept in ((R * D + 1, 0), (R * D, 1)):
        monkeypatch.setattr(module_under_test, "LARGE", large)
        assert torch.equal(
            gradient(read, torch.tensor([4]), table), gradient(embedding, torch.tensor([4]), table)
        )
        assert len(vars(read)["_kept"]) == kept


def test_transforms_and_compiled() -> None:
    table, index, read = some_table(), torch.tensor([4, 0, 4]), TableRows()
    expected = gradient(embedding, index, table)
    transformed = torch.func.grad(lambda t: read(index, t).square().sum())(table.detach())
    assert torch.equal(transformed, expected)
    compiled = torch.compile(read, fullgraph=True, backend="aot_eager")
    assert torch.equal(gradient(compiled, index, table), expected)


# --- where it is used
# ---------------------------------------------------------------------------------------------------

M, C = 5, 3
WHO, SAID = torch.tensor([[0, 4], [2, -1]]), torch.tensor([[1, 0], [2, -1]])


def losses() -> dict[str, tuple[nn.Module, Callable[[nn.Module], Tensor]]]:
    """Return each module with a table as large as the crowd, and a loss that uses it."""
    log_p, h = torch.full((C,), 1 / C).log(), torch.eye(2, C)
    found: dict[str, tuple[nn.Module, Callable[[nn.Module], Tensor]]] = {
        name: (kind(M, C), lambda g: g(log_p, WHO, SAID)[:, 0].sum())
        for name, kind in AGGREGATORS.items()
    }
    found["crowd_layer"] = AnnotatorMatrices(M, C), lambda layer: layer(h, WHO).square().sum()
    found["doctor_net"] = (
        AnnotatorHeads(M, C, num_features=C, learned=False),
        lambda heads: (heads(h, WHO) - 1).square().sum(),
    )
    return found


@pytest.mark.parametrize("name", losses())
def test_a_second_step_needs_no_new_memory(name: str) -> None:
    module, loss = losses()[name]
    tables = {n: t for n, t in module.named_parameters() if t.shape[0] == M}
    assert tables
    places = []
    for _ in range(3):
        loss(module).backward()
        places.append({n: t.grad.data_ptr() for n, t in tables.items() if t.grad is not None})
        assert len(places[-1]) == len(tables)
        module.zero_grad()
        torch.zeros(M * C * C).add(1)  # would take the memory if it had been freed
    assert places[0] == places[1] == places[2]
