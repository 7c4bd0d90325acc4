"""Speed of HMHAN: python benchmarks/speed/hmhan.py [--part cpu|gpu|disk] [--out FILE]

gpu   a report of 512 tokens at batch 64 with a 12-layer BERT (random weights, BioClinicalBERT's sizes): encoder alone
      and the whole model to its logits with weights in bf16, and the whole model under autocast, as a coder uses it;
      attention and its gradients at batch 32, steps per second at 64 new lengths and at the same lengths again;
      training of all but the encoder, with states on the GPU and with states that are read through a memory map (the
      system has them in memory), batches of 32, 128 and 512: reports per second, and the share of the time in which the
      GPU runs a kernel: kernel time of an epoch (torch's profiler) divided by its wall-clock time without the profiler;
      how many reports the loader prepares alone, and the rate of copies to the GPU, which bound states from disk;
      `without_cuda_graphs`: steps that launch each kernel separately;
      two epochs of the training loop itself with and without CUDA graphs: the largest weight difference
disk  of gpu, only the training with states that are read through a memory map
cpu   a report of 512 tokens with the built-in 6-layer encoder; LIME for a simulated report and one code, 1,000 samples;
      CPU milliseconds per report of an epoch with batches of 32, states at the width of BioClinicalBERT that are read
      through a memory map, and the same if attention projects all states to keys and values
both  the bytes of the states of 73,461 reports at 768 numbers per token, by the lengths of simulated reports

The gpu part takes two minutes and needs torch, transformers and what nosology itself needs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from scipy import sparse
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from nosology.attention.hierarchical_attention import HierarchicalAttention, MultiHeadAttention
from nosology.core.files import write_json
from nosology.encoders.state_cache import CachedStates, DeviceCachedStates, EncoderStateCache
from nosology.encoders.transformer import WindowedTransformer
from nosology.models.hmhan.hmhan_model import EncodedReport
from nosology.models.hmhan.hmhan_net import HmhanNet, ReportBatch
from nosology.models.hmhan.hmhan_settings import HmhanSettings, LossSettings
from nosology.models.hmhan.report_batches import LOADER_THREADS, ReportBatchBuilder, ReportDataset
from nosology.training.batch_plan import BatchPlan
from nosology.training.cuda_graphs import CudaGraphBatchStep
from nosology.training.data_loader import BatchLoader, StepBatches, on_device, pad_notes, token_mask
from nosology.training.inference import evaluating
from nosology.training.recipe_settings import TrainerSettings
from nosology.training.trainer import fit
from nosology.training.training_run import TrainingRun

RESULT = Path(__file__).parents[1] / "results" / "speed_hmhan.json"
REPORTS = 73_461  # of Sasikala et al. (2025)
CODES, CATEGORIES, WIDTH = 10, 6, 768
PROFILED_STEPS = 64  # the profiler is slow for each kernel
LENGTH = 170.0  # mean pieces of a report after cleaning where no tokenizer is at hand; see `storage`


def net_of(encoder: WindowedTransformer) -> HmhanNet:
    """HMHAN above an encoder, for the paper's ten codes."""
    return HmhanNet(HmhanSettings(frozen=True), LossSettings(), encoder, torch.arange(CODES) % CATEGORIES)


def random_bert(layers: int = 12) -> WindowedTransformer:
    """A BERT of BioClinicalBERT's sizes with random weights."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": layers, "num_attention_heads": 12, "intermediate_size": 3072}
    model = BertModel(BertConfig(vocab_size=28_996, max_position_embeddings=512, **sizes), add_pooling_layer=False)
    return WindowedTransformer(model, [101], [102], 0, 512)


def batch_of(lengths: list[int]) -> ReportBatch:
    """A batch of random word pieces."""
    rng = np.random.default_rng(0)
    tokens, sizes = pad_notes([rng.integers(1000, 20_000, n) for n in lengths])
    return ReportBatch(tokens, sizes)


def wait(device: str) -> None:
    """Waits until a GPU has finished its work."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds_of(run: Callable[[], Any], device: str) -> float:
    """Seconds of a call."""
    wait(device)
    started = time.perf_counter()
    run()
    wait(device)
    return time.perf_counter() - started


def median(run: Callable[[], Any], times: int, device: str) -> float:
    """Seconds of a call, the median of several, after three that do not count."""
    return statistics.median([seconds_of(run, device) for _ in range(times + 3)][3:])


def inference(device: str = "cuda", size: int = 64, layers: int = 12) -> dict[str, float]:
    """Milliseconds per report of 510 pieces and two special tokens; `mixed`: of 260 to 510, with padding."""
    net = net_of(random_bert(layers)).to(device)
    batch = batch_of([510] * size).to(device)
    mixed = batch_of(np.linspace(260, 510, size).astype(int).tolist()).to(device)
    with evaluating(net), torch.autocast(device, torch.bfloat16):
        autocast = median(lambda: net.logits(batch), 20, device)
        net.encoder.model.to(torch.bfloat16)
        encoder_alone = median(lambda: net.encoder(batch.tokens, batch.lengths), 20, device)
        full = median(lambda: net.logits(batch), 20, device)
        padded = median(lambda: net.logits(mixed), 20, device)
    seconds_per_batch = {
        "encoder_ms_per_report": encoder_alone,
        "whole_ms_per_report": full,
        "whole_mixed_ms_per_report": padded,
        "whole_autocast_ms_per_report": autocast,
    }
    return {name: 1000 * seconds / size for name, seconds in seconds_per_batch.items()}


def attention(device: str = "cuda", size: int = 32, longest: int = 512) -> dict[str, float]:
    """Steps per second of the two levels, forward and backward, over lengths seen for the first and second time."""
    layer = HierarchicalAttention(WIDTH, torch.arange(CODES) % CATEGORIES).to(device)
    states = torch.randn(size, longest + 8, WIDTH, device=device)
    widths = np.random.default_rng(2).permutation(np.arange(8, longest + 1, 8)).tolist()

    def steps(some: list[int]) -> None:
        for width in some:
            inside = token_mask(torch.arange(size) % width + 1, width, torch.device(device))
            with torch.autocast(device, torch.bfloat16):
                output = layer(states[:, :width], inside)
            output.float().square().mean().backward()
            layer.zero_grad()

    steps([longest + 8] * 3)  # allocates memory and loads kernels
    new, again = (len(widths) / seconds_of(lambda: steps(widths), device) for _ in range(2))
    return {"batch": size, "lengths": len(widths), "steps_per_second_new": new, "steps_per_second_again": again}


class Training:
    """HMHAN that learns from the states of random reports, computed once and stored on disk."""

    def __init__(self, mean: float, folder: Path, device: str = "cuda", reports: int = 8_000):
        """mean: pieces of a report."""
        rng = np.random.default_rng(1)
        self.device = device
        self.lengths = np.clip(rng.lognormal(np.log(mean) - 0.15, 0.55, reports), 5, 510).astype(int)
        texts = [rng.integers(1000, 20_000, n).astype(np.int32) for n in self.lengths]
        noise = rng.normal(size=(512, WIDTH)).astype(np.float16)
        nothing = np.empty(0, np.float32)
        gold = sparse.csr_matrix((rng.random((reports, CODES)) < 0.1).astype(np.int8))
        encodings = [EncodedReport(ids, ids, ids, nothing) for ids in texts]
        versions = np.ones(reports, np.int64)
        self.reports = ReportDataset(encodings, [()] * reports, gold, versions, versions, [""] * reports)

        def encode(missing: list[np.ndarray]) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
            for start in range(0, len(missing), 500):
                part = missing[start : start + 500]
                yield np.arange(start, start + len(part)), [noise[: len(text)] for text in part]

        self.cache = EncoderStateCache(folder, "random", WIDTH)
        self.on_disk = self.cache.add(texts, encode)

    def _net(self) -> HmhanNet:
        torch.manual_seed(0)
        return net_of(random_bert(1))

    def measured(
        self, cached_states: CachedStates | DeviceCachedStates, size: int, use_cuda_graphs: bool = True
    ) -> dict[str, float]:
        """Reports per second and the GPU's busy share; the steps of the training loop without its files."""
        net = self._net().to(self.device).train()
        learned = [p for n, p in net.named_parameters() if not n.startswith("encoder")]
        optimizer = torch.optim.AdamW(learned, 1e-3, fused=True)
        plan = BatchPlan(self.lengths, self.reports.versions, size, 1 << 20, 0)
        batches = ReportBatchBuilder(self.reports, np.arange(len(self.reports)), cached_states, None)

        def learn(batch: ReportBatch, share: torch.Tensor | float) -> None:
            with torch.autocast(self.device, torch.bfloat16):
                loss = net(batch)
            (loss * share).backward()

        step = CudaGraphBatchStep(learn, 4 * len(plan), torch.device(self.device)) if use_cuda_graphs else learn

        def run_steps(loaded: Iterator[StepBatches], most: int) -> int:
            """Runs the next steps and returns their number of reports."""
            reports = 0
            for work in islice(loaded, most):
                for part in work.micro_batches:
                    step(part.batch, part.weight)
                optimizer.step()
                optimizer.zero_grad(set_to_none=not use_cuda_graphs)
                reports += work.notes
            return reports

        threads = 1 if isinstance(cached_states, DeviceCachedStates) else LOADER_THREADS
        feed = BatchLoader(plan, batches.build, pin_memory=self.device == "cuda", threads=threads)
        kind = ProfilerActivity.CUDA if self.device == "cuda" else ProfilerActivity.CPU
        with closing(feed.steps(0, 0)) as steps:
            deque(islice(steps, len(plan)), maxlen=0)  # then the files are in memory and memory is pinned
            loading = seconds_of(lambda: deque(islice(steps, len(plan)), maxlen=0), self.device)
            loaded = on_device(steps, torch.device(self.device))
            for _ in range(3):  # by then the usual shapes have CUDA graphs
                run_steps(loaded, len(plan))
            epoch = statistics.median(seconds_of(lambda: run_steps(loaded, len(plan)), self.device) for _ in range(3))
            with profile(activities=[kind]) as profiler:
                seen = run_steps(loaded, min(len(plan), PROFILED_STEPS))
                wait(self.device)
        kernels = kernel_seconds(profiler) * len(self.reports) / seen
        return {
            "batch": size,
            "reports_per_second": len(self.reports) / epoch,
            "loaded_reports_per_second": len(self.reports) / loading,
            "steps_per_second": len(plan) / epoch,
            "kernel_seconds_per_epoch": kernels,
            "profiled_reports": seen,
            "gpu_busy_share": kernels / epoch,
        }

    def cpu_seconds(self, size: int = 32) -> float:
        """CPU seconds of an epoch in fp32, of the steps of the training loop without its files."""
        net = self._net().train()
        optimizer = torch.optim.AdamW([p for n, p in net.named_parameters() if not n.startswith("encoder")], 1e-3)
        plan = BatchPlan(self.lengths, self.reports.versions, size, 1 << 20, 0)
        batches = ReportBatchBuilder(self.reports, np.arange(len(self.reports)), self.on_disk, None)
        with closing(BatchLoader(plan, batches.build, threads=1).steps(0, 0)) as steps:
            started = time.process_time()
            for work in islice(steps, len(plan)):
                for part in work.micro_batches:
                    (net(part.batch) * part.weight).backward()
                optimizer.step()
                optimizer.zero_grad()
            return time.process_time() - started

    def agreement(
        self, cached_states: DeviceCachedStates, folder: Path, size: int = 32, reports: int = 2_000
    ) -> dict[str, float]:
        """Seconds of two epochs of the loop itself with and without CUDA graphs, and the largest weight difference."""
        rows, settings = np.arange(reports), TrainerSettings(epochs=2, batch=size, warmup=0)
        batches, results, nets = ReportBatchBuilder(self.reports, rows, cached_states, None), {}, {}
        for name, use_cuda_graphs in {"without_cuda_graphs": False, "with_cuda_graphs": True}.items():
            net = nets[name] = self._net()
            started = time.perf_counter()
            fit(TrainingRun(
                net, settings, lengths=self.lengths[rows], groups=self.reports.versions[rows],
                make_batch=batches.build, use_cuda_graphs=use_cuda_graphs, run_folder=folder / name, fingerprint=name,
                seed=0,
            ))  # fmt: skip
            results[f"{name}_seconds"] = time.perf_counter() - started
        pairs = zip(*(net.state_dict().values() for net in nets.values()))
        return results | {"largest_difference": max(float((a.float() - b.float()).abs().max()) for a, b in pairs)}


def training_on_cpu(mean: float, folder: Path, reports: int = 1_000) -> dict[str, float]:
    """CPU milliseconds per report of an epoch, the smallest of three, for both ways to compute attention."""
    benchmark = Training(mean, folder, "cpu", reports)
    ways, seconds = {"projected_queries": True, "projected_states": False}, defaultdict(list)
    for _ in range(3):
        for name, has_few in ways.items():
            with patch.object(MultiHeadAttention, "_has_few", return_value=has_few):
                seconds[name].append(benchmark.cpu_seconds())
    return {f"{name}_cpu_ms_per_report": 1000 * min(seconds[name]) / reports for name in ways}


def kernel_seconds(profiler: profile) -> float:
    """Seconds of all kernels that a profiler has seen, without copies."""
    events = [event for event in profiler.key_averages() if event.device_type == DeviceType.CUDA]
    kernels = [e for e in events if not e.is_user_annotation and not e.key.startswith(("Memcpy", "Memset"))]
    return sum(event.self_device_time_total for event in kernels) / 1e6


def copy_rate(device: str = "cuda", megabytes: int = 128) -> float:
    """Gigabytes per second that are copied from pinned memory to the GPU."""
    host = torch.empty(megabytes << 20, dtype=torch.uint8, pin_memory=True)
    seconds = median(lambda: host.to(device, non_blocking=True), 20, device)
    return host.nbytes / seconds / 1e9


def training(mean: float, folder: Path, disk_only: bool = False) -> dict[str, Any]:
    """Rates with states on the GPU, from disk, and without CUDA graphs, at several batch sizes."""
    started = time.perf_counter()
    benchmark = Training(mean, folder)
    results: dict[str, Any] = {
        "gigabytes": benchmark.cache.nbytes / 1e9,
        "cache_seconds": time.perf_counter() - started,
        "copied_gigabytes_per_second": copy_rate(),
    }
    if disk_only:
        return results | rates(benchmark, {"states_from_disk": (benchmark.on_disk, True)})
    on_gpu = DeviceCachedStates(benchmark.on_disk, benchmark.device)
    results["agreement"] = benchmark.agreement(on_gpu, folder)
    print(json.dumps(results["agreement"]), flush=True)
    runs = {
        "states_on_gpu": (on_gpu, True),
        "states_from_disk": (benchmark.on_disk, True),
        "without_cuda_graphs": (on_gpu, False),
    }
    return results | rates(benchmark, runs)


def rates(
    benchmark: Training, runs: dict[str, tuple[CachedStates | DeviceCachedStates, bool]]
) -> dict[str, dict[str, float]]:
    """The rates of each run (states, whether CUDA graphs are used) at several batch sizes."""
    results = {}
    for size in (32, 128, 512):
        for name, (cached_states, use_cuda_graphs) in runs.items():
            results[f"{name}_{size}"] = benchmark.measured(cached_states, size, use_cuda_graphs)
            print(name, json.dumps(results[f"{name}_{size}"]), flush=True)
    return results


def simulated_reports(n: int) -> list[str]:
    """Radiology reports of a simulated hospital."""
    from nosology.corpora.simulate.hospital import Hospital

    hospital, texts, patient = Hospital((2016, 2019)), [], 0
    while len(texts) < n:
        _, records = hospital.patient(7, patient)
        texts += [text for record in records for _, text in record.reports]
        patient += 1
    return Random(0).sample(texts, n)


def storage(pieces: np.ndarray) -> dict[str, float]:
    """Gigabytes of the states of all reports of the paper, at their true lengths and padded to 512."""
    token = 2 * WIDTH / 1e9
    return {
        "mean_pieces": float(pieces.mean()),
        "gigabytes": REPORTS * float(np.minimum(pieces, 512).mean()) * token,
        "gigabytes_padded": REPORTS * 512 * token,
    }


def on_cpu() -> dict[str, Any]:
    """A report of 512 tokens and LIME with the built-in encoder; training on cached states."""
    from nosology.core import Code, Note
    from nosology.core.label_space import LabelSpace
    from nosology.encoders.tokenizers import ReportTokenizer
    from nosology.encoders.transformer import load_pretrained
    from nosology.explanation.attribution import attribute
    from nosology.models.hmhan.code_groups import CodeCategories
    from nosology.models.hmhan.hmhan_model import Hmhan
    from nosology.models.hmhan.hmhan_net import HmhanEnsemble

    tokenizer, encoder = load_pretrained("minilm", 0, 512)
    texts = simulated_reports(300)
    reports = ReportTokenizer(tokenizer.tokenizer_json, 512)
    labels = LabelSpace([Code("icd10cm", code) for code in ("J18.9", "I50.9", "J90", "N17.9", "I10", "J96.01")])
    categories = CodeCategories.at_level(labels, "chapter")
    shape = HmhanSettings(encoder="minilm", frozen=True)
    net = HmhanNet(shape, LossSettings(), encoder, torch.from_numpy(categories.of_label))
    model = Hmhan(labels, np.ones(6, int), reports, HmhanEnsemble([net]), shape)
    lengths = np.array([len(reports.tokenize(text)) for text in texts])
    bare = HmhanEnsemble([net_of(encoder)])
    batch = batch_of([510])
    with evaluating(bare):
        seconds = median(lambda: bare.logits(batch), 7, "cpu")
    text = texts[int(np.argsort(lengths)[len(lengths) // 2])]
    started, clock = time.perf_counter(), time.process_time()
    attribute(model, Note("report", text), 0, "lime", samples=1000)
    lime = {"words": len(text.split()), "seconds": time.perf_counter() - started}
    lime["cpu_seconds"] = time.process_time() - clock
    with tempfile.TemporaryDirectory() as folder:
        rates = training_on_cpu(float(lengths.mean()), Path(folder))
    return {
        "threads": torch.get_num_threads(),
        "report_512_ms": 1000 * seconds,
        "lime": lime,
        "training": rates,
        "storage": storage(lengths),
    }


def main() -> None:
    """Measures, prints and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("cpu", "gpu", "disk"), default="gpu" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    mean = results.get("cpu", {}).get("storage", {}).get("mean_pieces", LENGTH)
    if arguments.part == "cpu":
        results["cpu"] = on_cpu()
    elif arguments.part == "disk":
        with tempfile.TemporaryDirectory() as folder:
            results["disk"] = {"device": torch.cuda.get_device_name()} | training(mean, Path(folder), disk_only=True)
    else:
        started = time.perf_counter()
        measured: dict[str, Any] = {"device": torch.cuda.get_device_name(), "attention": attention()}
        measured["inference"] = inference()
        print(json.dumps(measured, indent=2), flush=True)
        with tempfile.TemporaryDirectory() as folder:
            measured["training"] = training(mean, Path(folder))
        results["gpu"] = measured | {"seconds": time.perf_counter() - started}
    write_json(arguments.out, results)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
