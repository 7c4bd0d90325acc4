"""Steps that a GPU repeats; here they are taken one by one, which must come to the same."""

from dataclasses import replace

import torch

from nosology.models.hmhan.hmhan_net import HmhanNet, ReportBatch, SyntheticBatch
from nosology.models.hmhan.hmhan_settings import HmhanShape, LossSettings
from nosology.training.cuda_graphs import CudaGraphBatchStep
from nosology.training.data_loader import Batch

CPU = torch.device("cpu")
AWAY = torch.device("meta")  # what is there stands for what stays on the CPU: reading it is an error


def taken(*batches: Batch) -> list[tuple[Batch, float]]:
    """What the step is given."""
    found = []
    repeated = CudaGraphBatchStep(lambda batch, share: found.append((batch, float(share))), 1000, CPU)
    for number, batch in enumerate(batches):
        repeated(batch, 1 / (number + 1))
    return found


def report_batch(rows: int, seed: int, synthetic: SyntheticBatch | None = None, **more) -> ReportBatch:
    made = torch.Generator().manual_seed(seed)
    states = torch.randn(rows, 8, 12, generator=made).half()
    targets = (torch.rand(rows, 3, generator=made) < 0.5).float()
    tokens, lengths = torch.randint(1, 9, (rows, 8), generator=made), torch.randint(1, 9, (rows,), generator=made)
    return ReportBatch(tokens, lengths, None, targets, states=states, synthetic=synthetic, **more)


def test_every_call_is_given_its_own_batch_and_share():
    batches = [report_batch(rows, rows) for rows in (4, 4, 2, 4)]
    batches += [report_batch(4, 9, offsets=torch.ones(4, 3)), report_batch(4, 10)]
    for (batch, share), (number, given) in zip(taken(*batches), enumerate(batches), strict=True):
        assert share == torch.tensor(1 / (number + 1))
        for name in ("states", "lengths", "targets", "offsets"):
            mine, its = getattr(given, name), getattr(batch, name)
            assert (mine is None and its is None) or torch.equal(mine, its)


def test_rows_between_others_come_with_their_batch():
    between = SyntheticBatch(torch.tensor([[0, 1]]), torch.tensor([0.5]), torch.ones(1, 3))
    [(batch, _)] = taken(report_batch(2, 0, between))
    assert batch.synthetic is between


def test_hmhan_above_states_reads_nothing_of_a_batch_that_is_not_repeated():
    encoder = torch.nn.Identity()  # is never asked
    encoder.width = 12
    torch.manual_seed(0)
    shape = HmhanShape(frozen=True, heads=2, hidden=(8,), dropout=0.0, state_dropout=0.0)
    net = HmhanNet(shape, LossSettings(), encoder, torch.tensor([0, 0, 1])).train()
    torch.nn.init.normal_(net.head.own)
    first, second = (
        replace(batch, tokens=batch.tokens.to(AWAY), notes=torch.zeros(4, device=AWAY))
        for batch in (report_batch(4, 1), report_batch(4, 2))
    )
    [(_, _), (batch, _)] = taken(first, second)
    assert batch.tokens is first.tokens, "what is not repeated is still that of the first batch of the shape"
    assert torch.equal(net(batch), net(second))
    assert not torch.equal(net(first), net(second))
