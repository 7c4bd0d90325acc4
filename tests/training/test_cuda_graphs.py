"""Steps that a GPU captures as CUDA graphs; on a CPU they are called directly, with the same result."""

from dataclasses import replace

import torch

from nosology.models.hmhan.hmhan_net import HmhanNet, ReportBatch, SyntheticBatch
from nosology.models.hmhan.hmhan_settings import HmhanSettings, LossSettings
from nosology.training.cuda_graphs import CudaGraphBatchStep
from nosology.training.data_loader import Batch

CPU = torch.device("cpu")
META = torch.device("meta")  # for tensors that a graph would not copy: reading them is an error


def recorded_calls(*batches: Batch) -> list[tuple[Batch, float]]:
    """Batch and weight of each call of the step."""
    calls = []
    graph_step = CudaGraphBatchStep(lambda batch, weight: calls.append((batch, float(weight))), 1000, CPU)
    for number, batch in enumerate(batches):
        graph_step(batch, 1 / (number + 1))
    return calls


def report_batch(rows: int, seed: int, synthetic: SyntheticBatch | None = None, **fields) -> ReportBatch:
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(rows, 8, 12, generator=generator).half()
    targets = (torch.rand(rows, 3, generator=generator) < 0.5).float()
    tokens, lengths = (
        torch.randint(1, 9, (rows, 8), generator=generator),
        torch.randint(1, 9, (rows,), generator=generator),
    )
    return ReportBatch(tokens, lengths, None, targets, states=states, synthetic=synthetic, **fields)


def test_every_call_receives_its_batch_and_weight():
    batches = [report_batch(rows, rows) for rows in (4, 4, 2, 4)]
    batches += [report_batch(4, 9, offset=torch.ones(4, 3)), report_batch(4, 10)]
    for (batch, weight), (number, original) in zip(recorded_calls(*batches), enumerate(batches), strict=True):
        assert weight == torch.tensor(1 / (number + 1))
        for name in ("states", "lengths", "targets", "offset"):
            expected, value = getattr(original, name), getattr(batch, name)
            assert (expected is None and value is None) or torch.equal(expected, value)


def test_synthetic_rows_are_passed_with_their_batch():
    synthetic = SyntheticBatch(torch.tensor([[0, 1]]), torch.tensor([0.5]), torch.ones(1, 3))
    [(batch, _)] = recorded_calls(report_batch(2, 0, synthetic))
    assert batch.synthetic is synthetic


def test_hmhan_on_cached_states_reads_only_tensors_that_a_graph_copies():
    encoder = torch.nn.Identity()  # never called
    encoder.width = 12
    torch.manual_seed(0)
    shape = HmhanSettings(frozen=True, heads=2, hidden=(8,), dropout=0.0, state_dropout=0.0)
    net = HmhanNet(shape, LossSettings(), encoder, torch.tensor([0, 0, 1])).train()
    torch.nn.init.normal_(net.head.code_weight)
    first, second = (
        replace(batch, tokens=batch.tokens.to(META), notes=torch.zeros(4, device=META))
        for batch in (report_batch(4, 1), report_batch(4, 2))
    )
    [(_, _), (batch, _)] = recorded_calls(first, second)
    assert batch.tokens is first.tokens, "a tensor that is not copied is still that of the first batch"
    assert torch.equal(net(batch), net(second))
    assert not torch.equal(net(first), net(second))
