"""The recipe of `g2p-en`: train the reference Transformer on spelling -> pronunciation, on a CPU.

    python -m recipes.g2p_en.train DICTIONARY OUT

Seeded; writes OUT/training.pt after every epoch, goes on from it when started again, and ends with the
checkpoint OUT/checkpoint, stored in 16 bits. The learning rate warms up, stays, and falls to zero over the
last part of the epochs (Zhai et al. 2022), so a run that is under way can be given more epochs or be told
to finish. What makes it quick on two cores: batches of words of equal length, so nothing is padded; weights
and activations in bfloat16 with float32 masters; dropout masks drawn eight at a time; and Muon (Jordan et
al. 2024), which needs fewer steps than Adam.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recipes.g2p_en import g2p
from recipes.g2p_en.tokenizer import spelling_tokenizer
from txport.checkpoints.checkpoint import save_checkpoint
from txport.models.architectures.transformer import Transformer, TransformerConfig

PAD, BOS, EOS = (g2p.VOCABULARY.index(token) for token in ("<pad>", "<s>", "</s>"))
INDEX = {token: number for number, token in enumerate(g2p.VOCABULARY)}
Pair = tuple[list[int], list[int]]


class Dropout(nn.Module):
    """Dropout whose mask costs one random byte an element: torch's own draws took a quarter of a step."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.threshold = round(256 * rate)

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        if not self.training:
            return x
        words = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), None)
        keep = words.view(torch.uint8)[: x.numel()].view(x.shape) >= self.threshold
        return x * keep.to(x.dtype).mul_(256 / (256 - self.threshold))


def cheapen_dropout(module: nn.Module) -> None:
    """Replace every `nn.Dropout` below `module`."""
    for name, child in module.named_children():
        if isinstance(child, nn.Dropout):
            setattr(module, name, Dropout(child.p))
        else:
            cheapen_dropout(child)


def encode_pairs(dictionary: g2p.Dictionary) -> list[Pair]:
    """Token ids of each spelling with its end, and of each pronunciation with its start and end."""
    return [
        ([INDEX[letter] for letter in word] + [EOS], [BOS, *(INDEX[phone] for phone in phones), EOS])
        for word, entries in dictionary.items()
        for phones in entries
    ]


def batches(pairs: list[Pair], tokens: int, rng: random.Random) -> list[list[Pair]]:
    """All pairs in random batches of about `tokens` tokens, each of one source and nearly one target length."""
    order = sorted(pairs, key=lambda pair: (len(pair[0]), len(pair[1]), rng.random()))
    result: list[list[Pair]] = [[]]
    for pair in order:
        batch = result[-1]
        if batch and (len(batch[0][0]) != len(pair[0]) or len(batch) * (len(pair[0]) + len(pair[1])) >= tokens):
            result.append(batch := [])
        batch.append(pair)
    rng.shuffle(result)
    return result


def tensors(batch: list[Pair]) -> tuple[Tensor, Tensor, Tensor]:
    """-> source (B, S), lengths (B,), target (B, T + 1), padded at the right."""
    source = nn.utils.rnn.pad_sequence([torch.tensor(s) for s, _ in batch], True, PAD)
    target = nn.utils.rnn.pad_sequence([torch.tensor(t) for _, t in batch], True, PAD)
    return source, torch.tensor([len(s) for s, _ in batch]), target


def optimisers(model: Transformer, rate: float, name: str) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, Adam for embeddings, norms and biases."""
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embedding" not in n]
    others = [p for n, p in model.named_parameters() if p.dim() != 2 or "embedding" in n]
    if name == "adamw":
        return [torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True)]
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]


def rate_factor(progress: float, warmup: float, decay: float) -> float:
    """Where the learning rate stands, 0 to 1: up over `warmup`, then level, then down over `decay`."""
    return max(0.0, min(1.0, progress / warmup, (1 - progress) / decay))


@torch.no_grad()
def error_rate(model: Transformer, dictionary: g2p.Dictionary) -> float:
    """Greedy WER in percent: greedy search finds a reference just if, fed it, the model ranks each token first."""
    right = set()
    words = [word for word, entries in dictionary.items() for _ in entries]
    pairs = encode_pairs(dictionary)
    for start in range(0, len(pairs), 500):
        source, lengths, target = tensors(pairs[start : start + 500])
        best = model(source, lengths, target[:, :-1]).argmax(2)  # (B, T)
        good = ((best == target[:, 1:]) | (target[:, 1:] == PAD)).all(1)
        right |= {word for word, ok in zip(words[start : start + 500], good.tolist(), strict=True) if ok}
    return 100 * (1 - len(right) / len(dictionary))


class Training:
    """Everything that a run carries from one epoch to the next."""

    def __init__(self, config: TransformerConfig, args: argparse.Namespace) -> None:
        torch.manual_seed(args.seed)
        self.args = args
        self.master = Transformer(config)  # float32, what the optimiser changes
        self.worker = copy.deepcopy(self.master).bfloat16()  # what runs forward and backward
        cheapen_dropout(self.worker)
        self.average = copy.deepcopy(self.master).eval()  # what is kept
        self.optimisers = optimisers(self.master, args.rate, args.optimiser)
        self.epoch = 0
        self.seconds = 0.0

    def state(self) -> dict[str, Any]:
        """What `restore` needs."""
        return {
            "master": self.master.state_dict(),
            "average": self.average.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "epoch": self.epoch,
            "seconds": self.seconds,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where a run stood."""
        self.master.load_state_dict(state["master"])
        self.average.load_state_dict(state["average"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.epoch = state["epoch"]
        self.seconds = state["seconds"]

    def run_epoch(self, pairs: list[Pair]) -> float:
        """Train on every pair once; -> mean loss in nats a token."""
        torch.manual_seed(self.args.seed + self.epoch)
        plan = batches(pairs, self.args.batch_tokens, random.Random(self.args.seed + self.epoch))
        total = 0.0
        started = time.monotonic()
        self.worker.load_state_dict(self.master.state_dict())
        for number, batch in enumerate(plan):
            done = (self.epoch + number / len(plan)) / self.args.epochs
            self.set_rate(rate_factor(done, self.args.warmup / self.args.epochs, self.args.decay))
            total += self.train(batch)
        self.epoch += 1
        self.seconds += time.monotonic() - started
        return total / len(plan)

    def set_rate(self, factor: float) -> None:
        """Scale every optimiser's learning rate."""
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = self.args.rate * factor

    def train(self, batch: list[Pair]) -> float:
        """One step; -> its loss."""
        source, lengths, target = tensors(batch)
        logits = self.worker(source, lengths, target[:, :-1]).float()  # (B, T, V)
        loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD, label_smoothing=0.1)
        loss.backward()
        masters: list[Tensor] = list(self.master.parameters())
        workers: list[Tensor] = list(self.worker.parameters())
        averages: list[Tensor] = list(self.average.parameters())
        for master, worker in zip(masters, workers, strict=True):
            assert worker.grad is not None
            master.grad = worker.grad.float()
            worker.grad = None
        nn.utils.clip_grad_norm_(masters, 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
        with torch.no_grad():
            torch._foreach_copy_(workers, masters)
            torch._foreach_lerp_(averages, masters, 1 - self.args.average)
        return loss.item()


def model_config(args: argparse.Namespace) -> TransformerConfig:
    """The model that ships, in sizes that the arguments may change."""
    return TransformerConfig(
        source_vocab_size=len(g2p.VOCABULARY),
        target_vocab_size=len(g2p.VOCABULARY),
        d_model=args.size,
        heads=4,
        feed_forward=4 * args.size,
        encoder_layers=args.encoder_layers,
        decoder_layers=args.decoder_layers,
        max_length=64,
        norm="pre",
        dropout=args.dropout,
        pad_id=PAD,
        bos_id=BOS,
        eos_id=EOS,
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The recipe's settings; the defaults made the checkpoint that ships."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dictionary", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--optimiser", choices=("muon", "adamw"), default="muon")
    parser.add_argument("--warmup", type=float, default=1.0, help="epochs")
    parser.add_argument("--decay", type=float, default=0.3, help="share of the epochs")
    parser.add_argument("--batch-tokens", type=int, default=12000)
    parser.add_argument("--dropout", type=float, default=0.15)
    parser.add_argument("--average", type=float, default=0.998, help="decay of the averaged weights, a step")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--encoder-layers", type=int, default=3)
    parser.add_argument("--decoder-layers", type=int, default=3)
    parser.add_argument("--development-words", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Train until `--epochs` are done."""
    args = parse(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    dictionary = g2p.read_dictionary(args.dictionary)
    words = random.Random(args.seed).sample(sorted(dictionary), args.development_words)
    train, development = g2p.split_off(dictionary, words)
    training = Training(model_config(args), args)
    pairs = encode_pairs(train)
    saved = args.out / "training.pt"
    if saved.exists():
        training.restore(torch.load(saved, weights_only=True))
    while training.epoch < args.epochs:
        loss = training.run_epoch(pairs)
        wer = error_rate(training.average, development)
        record = {"epoch": training.epoch, "loss": round(loss, 4), "development_wer": round(wer, 2)}
        print(json.dumps({**record, "seconds": round(training.seconds)}), flush=True)
        torch.save(training.state(), saved.with_suffix(".new"))
        saved.with_suffix(".new").replace(saved)
    tokenizer = spelling_tokenizer(g2p.VOCABULARY)
    save_checkpoint(args.out / "checkpoint", training.average, tokenizer, half=True)


if __name__ == "__main__":
    main()
