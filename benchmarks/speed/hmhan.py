"""Speed of HMHAN: python benchmarks/speed/hmhan.py [--part cpu|gpu] [--out FILE]

gpu   a report of 512 tokens at batch 64 with a 12-layer BERT (random weights, BioClinicalBERT's sizes) in bf16: encoder
      alone, and the whole way to logits; training of all but the encoder on states that are read from a cache on disk:
      reports a second, and the share of the time in which the GPU runs a kernel (torch's profiler)
cpu   a report of 512 tokens with the built-in 6-layer encoder; LIME for a simulated report and one code, 1,000 samples
both  the bytes of the states of 73,461 reports at 768 numbers a token, by the lengths of simulated reports

The gpu part takes two or three minutes and needs torch, transformers and what nosology itself needs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from nosology.core.files import write_json
from nosology.encoders.state_cache import StateCache
from nosology.encoders.transformer import Windows
from nosology.models.batch import rectangle
from nosology.models.hmhan_net import HmhanNet, ReportBatch
from nosology.models.hmhan_settings import HmhanShape, LossSettings
from nosology.models.neural import evaluating
from nosology.training.feed import Feed
from nosology.training.plan import Plan

RESULT = Path(__file__).parents[1] / "results" / "speed_hmhan.json"
REPORTS = 73_461  # paper 002
CODES, CATEGORIES, WIDTH = 10, 6, 768
LENGTH = 170.0  # mean pieces of a report after cleaning where no tokenizer is at hand; see `storage`


def net_of(encoder: Windows) -> HmhanNet:
    """HMHAN above an encoder, for the paper's ten codes."""
    return HmhanNet(HmhanShape(frozen=True), LossSettings(), encoder, torch.arange(CODES) % CATEGORIES)


def random_bert(layers: int = 12) -> Windows:
    """A BERT of BioClinicalBERT's sizes with random weights."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": layers, "num_attention_heads": 12, "intermediate_size": 3072}
    model = BertModel(BertConfig(vocab_size=28_996, max_position_embeddings=512, **sizes), add_pooling_layer=False)
    return Windows(model, [101], [102], 0, 512)


def batch_of(lengths: list[int]) -> ReportBatch:
    """Reports of random pieces."""
    rng = np.random.default_rng(0)
    tokens, sizes = rectangle([rng.integers(1000, 20_000, n) for n in lengths])
    return ReportBatch(tokens, sizes)


def median(run: Callable[[], Any], times: int, gpu: bool) -> float:
    """Seconds of a call, the median of several, after three that do not count."""
    found = []
    for number in range(times + 3):
        if gpu:
            torch.cuda.synchronize()
        started = time.perf_counter()
        run()
        if gpu:
            torch.cuda.synchronize()
        if number >= 3:
            found.append(time.perf_counter() - started)
    return statistics.median(found)


def inference_gpu() -> dict[str, float]:
    """Milliseconds a report of 510 pieces and the two around them, batch 64."""
    net = net_of(random_bert()).to("cuda")
    net.encoder.model.to(torch.bfloat16)
    batch = batch_of([510] * 64).to("cuda")
    with evaluating(net), torch.autocast("cuda", torch.bfloat16):
        alone = median(lambda: net.encoder(batch.tokens, batch.lengths), 20, True)
        whole = median(lambda: net.logits(batch), 20, True)
    return {"encoder_ms_a_report": 1000 * alone / 64, "whole_ms_a_report": 1000 * whole / 64}


def training_gpu(mean: float, folder: Path, reports: int = 8_000, batch: int = 32) -> dict[str, float]:
    """Reports a second and the GPU's busy share while HMHAN learns from states on disk."""
    from torch.profiler import ProfilerActivity, profile

    rng = np.random.default_rng(1)
    lengths = np.clip(rng.lognormal(np.log(mean) - 0.15, 0.55, reports), 5, 510).astype(int)
    texts = [rng.integers(1000, 20_000, n).astype(np.int32) for n in lengths]
    noise = rng.normal(size=(512, WIDTH)).astype(np.float16)

    def encode(missing: list[np.ndarray]) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
        for start in range(0, len(missing), 500):
            part = missing[start : start + 500]
            yield np.arange(start, start + len(part)), [noise[: len(text)] for text in part]

    cache = StateCache(folder, "random", WIDTH)
    places = cache.add(texts, encode)
    net = net_of(random_bert(1)).to("cuda").train()
    learned = [p for n, p in net.named_parameters() if not n.startswith("encoder")]
    optimizer = torch.optim.AdamW(learned, 1e-3, fused=True)
    targets = torch.from_numpy((rng.random((reports, CODES)) < 0.1).astype(np.float32))

    def make(rows: np.ndarray, _: Any) -> ReportBatch:
        tokens, sizes = rectangle([texts[row] for row in rows])
        states = torch.from_numpy(places.rectangle(rows, tokens.shape[1]))
        return ReportBatch(tokens, sizes, targets=targets[torch.from_numpy(rows)], states=states)

    def epoch(number: int) -> float:
        """Seconds of an epoch, with the batches of the training loop but without its files."""
        plan = Plan(lengths, np.zeros(reports, np.int64), batch, 1 << 20, number)
        torch.cuda.synchronize()
        started = time.perf_counter()
        with closing(Feed(plan, make, pinned=True).steps(0, 0)) as steps:
            for work in islice(steps, len(plan)):
                for part in work.parts:
                    with torch.autocast("cuda", torch.bfloat16):
                        loss = net(part.batch.to("cuda"))
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        return time.perf_counter() - started

    epoch(0)
    rate = reports / statistics.median(epoch(number) for number in (1, 2, 3))
    with profile(activities=[ProfilerActivity.CUDA]) as watched:
        seconds = epoch(4)
    kernels = sum(event.self_device_time_total for event in watched.key_averages()) / 1e6
    return {
        "batch": batch,
        "reports_per_second": rate,
        "kernel_seconds_an_epoch": kernels,
        "gpu_busy_share": kernels / (reports / rate),
        "watched_seconds": seconds,
        "cache_gigabytes": cache.nbytes / 1e9,
    }


def simulated_reports(n: int) -> list[str]:
    """Radiology reports of a simulated hospital."""
    from nosology.corpora.simulate.hospital import Hospital

    hospital, found, patient = Hospital((2016, 2019)), [], 0
    while len(found) < n:
        _, stays = hospital.patient(7, patient)
        found += [text for stay in stays for _, text in stay.reports]
        patient += 1
    return Random(0).sample(found, n)


def storage(pieces: np.ndarray) -> dict[str, float]:
    """Gigabytes of the states of all reports of the paper, at their true lengths and padded to 512."""
    token = 2 * WIDTH / 1e9
    return {
        "mean_pieces": float(pieces.mean()),
        "gigabytes": REPORTS * float(np.minimum(pieces, 512).mean()) * token,
        "gigabytes_padded": REPORTS * 512 * token,
    }


def on_cpu() -> dict[str, Any]:
    """A report of 512 tokens, and LIME, with the built-in encoder."""
    from nosology.codes.label_space import LabelSpace
    from nosology.core import Code
    from nosology.encoders.report_reader import ReportReader
    from nosology.encoders.transformer import pretrained
    from nosology.explanation.attribution import attribute
    from nosology.models.categories import Categories
    from nosology.models.hmhan import Hmhan
    from nosology.models.hmhan_net import HmhanNets
    from nosology.models.words import Words

    reader, encoder = pretrained("minilm", 0, 512)
    texts = simulated_reports(300)
    reports = ReportReader(reader.tokenizer_json, 512)
    labels = LabelSpace([Code("icd10cm", code) for code in ("J18.9", "I50.9", "J90", "N17.9", "I10", "J96.01")])
    words, categories = Words.fit(texts, 2, 30_000), Categories.at(labels, "chapter")
    shape = HmhanShape(encoder="minilm", frozen=True)
    net = HmhanNet(shape, LossSettings(), encoder, torch.from_numpy(categories.of), words=len(words))
    model = Hmhan(labels, np.ones(6, int), reports, HmhanNets([net]), shape, categories=categories, words=words)
    lengths = np.array([len(reports.read(text)) for text in texts])
    bare = HmhanNets([net_of(encoder)])
    batch = batch_of([510])
    with evaluating(bare):
        seconds = median(lambda: bare.logits(batch), 7, False)
    text = texts[int(np.argsort(lengths)[len(lengths) // 2])]
    started, clock = time.perf_counter(), time.process_time()
    attribute(model, text, 0, "lime", samples=1000)
    lime = {"words": len(text.split()), "seconds": time.perf_counter() - started}
    lime["cpu_seconds"] = time.process_time() - clock
    return {
        "threads": torch.get_num_threads(),
        "report_512_ms": 1000 * seconds,
        "lime": lime,
        "storage": storage(lengths),
    }


def main() -> None:
    """Measures, prints and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("cpu", "gpu"), default="gpu" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    if arguments.part == "cpu":
        results["cpu"] = on_cpu()
    else:
        mean = results.get("cpu", {}).get("storage", {}).get("mean_pieces", LENGTH)
        found = {"device": torch.cuda.get_device_name(), "inference": inference_gpu()}
        print(json.dumps(found, indent=2), flush=True)
        for batch in (32, 128):
            with tempfile.TemporaryDirectory() as folder:
                found[f"training_{batch}"] = training_gpu(mean, Path(folder), batch=batch)
        results["gpu"] = found
    write_json(arguments.out, results)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
