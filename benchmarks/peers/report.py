"""The record of a run as text: one row per line, with the measured and the required ratio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from benchmarks.peers.duel import ALIKE
from benchmarks.peers.lines import TARGET

HEADERS = ("what", "against", "unit", "txport", "peer", "ratio", "required", "equal targets", "verdict", "measured")
Record = Mapping[str, Any]


def alike(record: Record) -> str:
    """Return the number of equal targets, or how far vectors are apart."""
    if "cosine_apart" in record:
        return f"1 - cosine {record['cosine_apart']:.1g}"
    return f"{record['equal_rows']} of {record['rows']}"


def verdict(record: Record) -> str:
    """Return the verdict on a line: "skipped", "failed", "not judged", "reached" or "falls short"."""
    for what in ("skipped", "failed"):
        if what in record:
            return what
    if record["required"] is None:
        return "not judged"
    return "reached" if record["ratio"]["median"] >= record["required"] else "falls short"


def falls_short(record: Record) -> bool:
    """Whether a line causes exit code 1; lines that were not measured do."""
    return verdict(record) not in ("reached", "not judged")


def row(record: Record, where: str = "") -> list[str]:
    """Return a line's cells; `where` is the letter of the machine."""
    measured = f"{record['date']} {where}".strip()
    required = "" if record["required"] is None else f"{record['required']:g}"
    start = [record["name"], record["against"], record["unit"]]
    if "ratio" not in record:
        return [*start, "", "", "", required, "", verdict(record), measured]
    figures = [quartiles(record[side], ".0f" if record[side]["median"] >= 10 else ".2f") for side in ("txport", "peer")]
    equal = alike(record)
    return [*start, *figures, quartiles(record["ratio"], ".2f"), required, equal, verdict(record), measured]


def sentence(record: Record) -> str:
    """Return a line's result as a sentence for a log."""
    _, _, unit, ours, theirs, ratio, required, equal, outcome, _ = row(record)
    if not ratio:
        return f"{outcome}: {record[outcome]}"
    figures = f"txport {ours}, peer {theirs} {unit}, {ratio} times, required {required or 'nothing'}, equal: {equal}"
    return f"{outcome}: {figures}"


def quartiles(figure: Mapping[str, float], form: str) -> str:
    """Format the median, and the quartiles if they differ from it."""
    median, q1, q3 = (format(figure[name], form) for name in ("median", "q1", "q3"))
    return median if q1 == median == q3 else f"{median} ({q1} to {q3})"


def text(records: Sequence[Record]) -> str:
    """Return the table for a terminal, followed by the reasons why lines were not measured."""
    table = [list(HEADERS), *map(row, records)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) for cells in table]
    return "\n".join([*(line.rstrip() for line in lines), *reasons(records)])


def reasons(records: Sequence[Record]) -> list[str]:
    """Return the reasons why lines were skipped or failed."""
    return [
        f"{verdict(record)}: {record['name']}, against {record['against']}: {record[verdict(record)]}"
        for record in records
        if verdict(record) in record
    ]


def markdown(result: Mapping[str, Any]) -> str:
    """Return the whole page: picture, ratios by processor, machines, rules, table, settings."""
    records: Sequence[Record] = result["lines"]
    machines = machines_of(records)
    rows = [row(record, letter_of(machines, record)) for record in records]
    parts = ["# Measured beside its peers", overview(records, machines), "## Every line"]
    parts += [introduction(result, machines), pipes(HEADERS, rows)]
    if why := reasons(records):
        parts.append("\n".join(f"- {reason}" for reason in why))
    parts += ["## Settings that were best", pipes(("what", "txport", "against", "peer"), settings(records))]
    return "\n\n".join(parts) + "\n"


def overview(records: Sequence[Record], machines: Sequence[str]) -> str:
    """Return the picture, and the table of ratios by model and processor."""
    lines = hardest(records)
    faster = sum(record["ratio"]["median"] >= 1 for record in lines)
    groups: dict[str, list[list[float]]] = {}
    for record in lines:
        columns = groups.setdefault(group(record), [[] for _ in machines])
        columns[machines.index(in_words(record["machine"]))].append(record["ratio"]["median"])
    table = [[name, *map(span, columns)] for name, columns in groups.items()]
    names = [short(record) for record in {in_words(record["machine"]): record for record in records}.values()]
    headers = ["model, precision", *(f"{chr(ord('A') + number)}: {name}" for number, name in enumerate(names))]
    return f"""![Ratio of the speed of txport to that of the fastest peer, by model, on a log axis](peers.svg)

txport is at least as fast as the fastest peer in {faster} of {len(lines)} lines: tasks of one model, precision and
processor, with two cores. A dot of the picture is the ratio of txport's speed to this peer's, and a table cell has the
geometric mean of the ratios of its lines (least to largest). `python -m docs.peers_picture` draws the picture, and
writes this page, from the record of `make bench-peers`.

{pipes(headers, table)}"""


def hardest(records: Sequence[Record]) -> list[Record]:
    """Return the records of speed beside the peer that is fastest, for each task and machine; by model."""
    found: dict[tuple[str, str], Record] = {}
    for record in records:
        if "ratio" in record and record["unit"] != "MB":
            key = (record["name"], in_words(record["machine"]))
            found[key] = min(found.get(key, record), record, key=lambda each: float(each["ratio"]["median"]))
    models = list(dict.fromkeys(record["task"]["checkpoint"] for record in records))
    return sorted(found.values(), key=lambda each: models.index(each["task"]["checkpoint"]))


def group(record: Record) -> str:
    """Return the model and the precision of a line."""
    return f"{record['task']['checkpoint']}, {record['settings']['txport']['model']['precision']}"


def short(record: Record) -> str:
    """Return the processor of a line, and its instructions: the newest of those for products of int8, else of all."""
    machine = record["machine"]
    name = machine["cpu"].replace("(R)", "").removesuffix(" Processor")
    known = machine.get("instructions", ())
    return " ".join([name, *([each for each in known if "vnni" in each] or known)[-1:]])


def span(ratios: Sequence[float]) -> str:
    """Return the geometric mean, and the least and the largest of several."""
    if not ratios:
        return ""
    mean = f"{geometric_mean(ratios):.2f}"
    return mean if len(ratios) == 1 else f"{mean} ({min(ratios):.2f} to {max(ratios):.2f})"


def machines_of(records: Sequence[Record]) -> list[str]:
    """Return descriptions of the machines that lines were measured on."""
    return list(dict.fromkeys(in_words(record["machine"]) for record in records))


def in_words(machine: Mapping[str, Any]) -> str:
    """Return the processor, its instructions, the number of its cores and the system."""
    kernels = ", ".join(machine.get("instructions", ["whose instructions were not recorded"]))
    return f"{machine['cpu']} ({kernels}), {machine['cores']} cores, {machine['system']}"


def letter_of(machines: Sequence[str], record: Record) -> str:
    """Return the letter of a line's machine; "" if there is only one machine."""
    return chr(ord("A") + machines.index(in_words(record["machine"]))) if len(machines) > 1 else ""


def introduction(result: Mapping[str, Any], machines: Sequence[str]) -> str:
    """Return the text with machines, versions, rules, and the command that repeats the measurement."""
    protocol = result["protocol"]
    lettered = [f"{chr(ord('A') + number)}: {each}" for number, each in enumerate(machines)]
    where = "; ".join(lettered if len(machines) > 1 else machines)
    versions = ", ".join(f"{name} {number}" for name, number in sorted(result["versions"].items()))
    rounds = sorted({record["rounds"] for record in result["lines"]})
    sizes = f"Lines without a name: {protocol['checkpoint']}, with {protocol['vocabulary']:,} tokens and random weights"
    lengths = f"sources and prompts have {protocol['source']} tokens unless it is said, targets {protocol['tokens']}"
    return f"""Measured on {protocol["cores"]} cores of {where}.
{versions}.
`make bench-peers` measures again; `benchmarks/results/peers-cpu.json` has every figure and every setting tried.

{sizes}; {lengths}, the end token suppressed.
A line with a prompt alone counts the tokens that are read until the first one is written.
A folder is one that transformers saved, with a published model's sizes and random weights, which each side converts by
its own converter; before it is measured, both sides must find the same tokens of it in fp32, or the same vectors.
Its targets have {TARGET} tokens; Whisper hears windows of 30 seconds, by features that are given, and encodes them in
the time. An encoder's folder gives vectors, the means over tokens: "8 x 64" are 8 texts of 64 tokens, and "1 - cosine"
is how far both sides' vectors are apart. The weights of onnxruntime-genai, OpenVINO, llama.cpp and whisper.cpp are
quantised by their own tools; beside these, txport's settings include its portable bundle on OpenVINO, for decoders in
fp32 and in bf16. OpenVINO GenAI keeps no prefixes, since each round has the same prompts. "OpenVINO's Whisper" is a
greedy search over the graphs of Optimum Intel, which OpenVINO GenAI runs, too.
g2p-en pronounces the test words, each to its own end. Both sides get the same weights, the same ids and the same
cores, each at the best of its settings, in a process of its own; the process that does not work is held. A peer's
setting is left out if its log-probs of given tokens are more than {ALIKE} from txport's, in the mean.
Medians (and quartiles) of {" or ".join(map(str, rounds))} alternating rounds; the ratio says how many times better
txport is, round by round. "Batch" is one caller with one batch in flight; "bulk" is all sources at once. Optimum is
the best of its fp32 and its own dynamic int8. "Equal targets" are sources to which both sides gave the same tokens; two
ways of rounding to int8 need not agree."""


def pipes(headers: Sequence[str], rows: Any) -> str:
    """Return a Markdown table."""
    lines = [list(headers), ["---"] * len(headers), *map(list, rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def settings(records: Sequence[Record]) -> list[list[str]]:
    """Return the rows of the table of best settings."""
    return [
        [record["name"], setting(record["settings"]["txport"]), record["against"], setting(record["settings"]["peer"])]
        for record in records
        if "settings" in record
    ]


def setting(candidate: Mapping[str, Any]) -> str:
    """Return the settings of a candidate in words."""
    values = {"precision": candidate["model"]["precision"], **candidate["options"], **candidate["environment"]}
    return ", ".join(f"{name} {value}" for name, value in values.items())
