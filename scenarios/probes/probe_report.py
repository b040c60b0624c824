"""The report of a probe run: accuracies, losses and contamination detectors by candidate, as data and tables.

`observe` returns the same records as observations for the contamination court.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from viva.data.items import cluster_name
from viva.reports.figures import estimate_record, mean_record, round_figure
from viva.reports.run_tables import failure_table, irregular_record, irregular_table
from viva.reports.tables import Table, interval, number, percent
from viva.scoring.aggregates import ClusteredStream, Mean, Tally
from viva.scoring.clustered_means import clustered_mean
from viva.scoring.contamination import Signals, auc, chance_error, fpr_at_tpr, loss_gap, loss_ratio, tpr_at_fpr
from viva.scoring.evidence.observations import Observations, SetResults

from ..run_aggregate import ModelResults, RunAggregate, tier_name
from .probe import ANSWERING

_LOW_FALSE_POSITIVES, _HIGH_TRUE_POSITIVES = 0.05, 0.95
_DETECTOR = "min_k_plus_plus_20"  # of the contamination court
ACCURACIES = {
    "letter": "letter",
    "text": "text",
    "text_normalised": "text, by length",
    "text_per_token": "text, by token",
    "text_unconditional": "text, unconditional",
    "generate": "generated",
    "free": "exact",
}
# The fields of accuracies that share a method's result: the method, and whether the choice was right.
_FIELDS = {
    "text_normalised": ("text", "normalised_right"),
    "text_per_token": ("text", "per_token_right"),
    "text_unconditional": ("unconditional", "right"),
}
_UNANSWERED = {"generate": "choice", "free": "answer"}  # methods whose answers may be none, and the field
ORDERS = {
    "published": "published order",
    "mean": "mean of orders",
    "strict": "right in all orders",
    "vote": "vote over orders",
}


def answers_of(result: Mapping[str, Any]) -> Iterator[tuple[str, bool, bool]]:
    """Yield each accuracy's name with whether the item was answered right, and whether it was answered at all."""
    for name in ACCURACIES:
        method, field = _FIELDS.get(name, (name, "right"))
        answer = result.get(method)
        if answer is not None and field in answer:  # records of earlier versions lack some
            yield name, bool(answer[field]), name not in _UNANSWERED or answer[_UNANSWERED[name]] is not None


def _orders_of(result: Mapping[str, Any]) -> dict[str, float]:
    """Return an item's accuracies over orders of its options; the vote only if the choices are recorded."""
    record = result.get("options") or result.get("permute")
    if record is None:
        return {}
    right = [float(each) for each in record["right"]]
    accuracies = {"published": right[0], "mean": sum(right) / len(right), "strict": min(right)}
    if "choices" not in record:
        return accuracies
    counts = Counter(choice for choice in record["choices"] if choice is not None).most_common(2)
    won = bool(counts) and (len(counts) == 1 or counts[0][1] > counts[1][1])
    rights = {choice for choice, each in zip(record["choices"], record["right"], strict=True) if each}
    return accuracies | {"vote": float(won and counts[0][0] in rights)}


class CandidateProbes(ModelResults):
    """The results of one candidate, in whatever order. `signals` are kept by item, because ranks need all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0
        self.right: dict[str, list[tuple[bool, str]]] = {name: [] for name in ACCURACIES}  # each with its cluster
        self.orders: dict[str, list[tuple[float, str]]] = {name: [] for name in ORDERS}  # likewise
        self.lower: dict[tuple[bool, str], float] = {}  # losses in lower case
        self.unanswered = Tally()
        self.overlap = ClusteredStream()  # F1 of free answers
        self.losses = {False: ClusteredStream(), True: ClusteredStream()}
        self.signals: dict[tuple[bool, str], Signals] = {}
        self.clusters: dict[tuple[bool, str], str] = {}

    def add(self, result: dict[str, Any]) -> None:
        self.n += not result["second"] and "shard" not in result
        cluster = result.get("cluster", "")
        label = cluster_label(result)
        if not result["second"]:
            for name, right, answered in answers_of(result):
                self.right[name].append((right, label))
                if not answered:
                    self.unanswered.add(name)
            for name, value in _orders_of(result).items():
                self.orders[name].append((value, label))
        if "free" in result:
            self.overlap.add(result["free"]["f1"], cluster)
        if "lower" in result:
            self.lower[result["second"], result["item"]] = result["lower"]["loss"]
        if "signals" in result:
            signals = Signals(**result["signals"])
            self.losses[result["second"]].add(signals.loss, cluster)
            self.signals[result["second"], result["item"]] = signals
            self.clusters[result["second"], result["item"]] = label
        if "stopped" in result:
            self.stops.add(result["stopped"])
        self.add_usage(result)

    def to_dict(self, members_are_second: bool, reference: CandidateProbes | None = None) -> dict[str, Any]:
        data: dict[str, Any] = {"n": self.n, "accuracy": {}, "failed": self.failures.total}
        data |= self.failures.to_record() | {"stopped": self.stops.to_dict()}
        data["irregular"] = irregular_record(self.irregular)
        for name, answers in self.right.items():
            mean = clustered_mean([float(right) for right, _ in answers], [label for _, label in answers])
            if mean is not None:
                right = sum(right for right, _ in answers)
                counts = {"right": right, "unanswered": self.unanswered.counts.get(name, 0)}
                data["accuracy"][name] = estimate_record(mean.bounded_interval(0.0, 1.0, rate=True), 100) | counts
        orders = {name: clustered_mean(*zip(*values, strict=True)) for name, values in self.orders.items() if values}
        if orders:
            data["orders"] = {"n": len(self.orders["published"])} | {
                name: estimate_record(mean.bounded_interval(0.0, 1.0, rate=name != "mean"), 100)
                for name, mean in orders.items()
                if mean is not None
            }
        if self.overlap.n:
            data["accuracy"]["free"]["f1"] = mean_record(self.overlap, 100)
        for name, second in (("loss", False), ("loss_against", True)):
            if self.losses[second].n:
                data[name] = mean_record(self.losses[second])
        if self.losses[True].clusters > 1 and self.losses[False].clusters > 1:
            member, other = self.losses[members_are_second], self.losses[not members_are_second]
            data["loss_gap"] = estimate_record(loss_gap(other, member))
            data["detectors"] = self._detectors(members_are_second, reference)
        elif self.signals:
            data["detector_means"] = self._means(reference)
        return data

    def _scores(self, key: tuple[bool, str], reference: CandidateProbes | None) -> dict[str, float]:
        """Return the detectors' scores of a text, with ratios to its loss in lower case and to the reference's."""
        scores, own = self.signals[key].scores(), self.signals[key].loss
        if self.lower.get(key):
            scores["lowercase_ratio"] = -loss_ratio(own, self.lower[key])
        if reference is not None and reference is not self and key in reference.signals and reference.signals[key].loss:
            scores["reference_ratio"] = -loss_ratio(own, reference.signals[key].loss)
        return scores

    def _detectors(self, members_are_second: bool, reference: CandidateProbes | None) -> dict[str, Any]:
        texts = {key: self._scores(key, reference) for key in sorted(self.signals)}
        return detector_records(texts, self.clusters, members_are_second)

    def _means(self, reference: CandidateProbes | None) -> dict[str, float | None]:
        means: dict[str, Mean] = {}
        for key in self.signals:
            for name, value in self._scores(key, reference).items():
                means.setdefault(name, Mean()).add(value)
        return {name: round_figure(mean.mean) for name, mean in means.items()}


def cluster_label(result: dict[str, Any]) -> str:
    """Return the cluster of a record's item, for most items the item itself."""
    own = f"{'against' if result['second'] else 'dataset'}/{result['item']}"
    return f"cluster/{result['cluster']}" if result.get("cluster") else own


def detector_records(
    texts: Mapping[tuple[bool, str], Mapping[str, float]],
    clusters: Mapping[tuple[bool, str], str],
    members_are_second: bool,
) -> dict[str, Any]:
    """Return for each detector how well it separates members from other texts, if every text has its score.

    Args:
        texts: The scores of each text, by its set (True: the second) and its item.
        clusters: The cluster of each text.
        members_are_second: True if the second set counts as seen in training.

    Returns:
        Records with `chance_se`, the standard error of the area if members and others were alike, and `items`, the
            number of independent texts of the smaller set, in which clusters count once.
    """
    member = [second == members_are_second for second, _ in texts]
    labels = [clusters[key] for key in texts]
    items = min(len({clusters[key] for key in texts if key[0] == second}) for second in (False, True))
    records: dict[str, Any] = {}
    for name in next(iter(texts.values())):
        if all(name in scores for scores in texts.values()):
            values = [scores[name] for scores in texts.values()]
            records[name] = estimate_record(auc(values, member, clusters=labels))
            records[name]["tpr_at_5_fpr"] = round_figure(tpr_at_fpr(values, member, _LOW_FALSE_POSITIVES))
            records[name]["fpr_at_95_tpr"] = round_figure(fpr_at_tpr(values, member, _HIGH_TRUE_POSITIVES))
            records[name]["chance_se"] = round_figure(chance_error(values, member, labels))
            records[name]["items"] = items
    return records


class ProbeAggregate(RunAggregate[CandidateProbes]):
    """The candidates of a run."""

    fields = (
        *("scenario", "seed", "tier", "methods", "shots", "members"),
        *("models", "dataset", "against", "pack"),
    )

    def __init__(self, manifest: dict[str, Any]) -> None:
        super().__init__(manifest, CandidateProbes, "candidate")

    def add(self, key: str, result: Any) -> None:
        self.candidates[result["candidate"]].add(result)
        if self.exams is not None:
            [method] = self.manifest["settings"]["method"]
            self.exams.add(key, float(result[method]["right"]) if method in result else None)

    def in_brief(self, probes: CandidateProbes) -> str:
        texts = [
            f"{ACCURACIES[name]} {percent(sum(right for right, _ in answers) / len(answers))}"
            for name, answers in probes.right.items()
            if answers
        ]
        loss = probes.losses[False].mean
        return ", ".join([*texts, *([f"loss {loss:.2f}"] if loss is not None else [])])

    def facts(self) -> dict[str, Any]:
        settings = self.manifest["settings"]
        return {"methods": settings["method"], "shots": settings["shots"], "members": settings["members"]}

    def figures(self, label: str, probes: CandidateProbes) -> dict[str, Any]:
        settings = self.manifest["settings"]
        reference = settings.get("reference")
        other = self.candidates[reference] if reference else None
        figures = probes.to_dict(settings["members"] == "against", other)
        return figures if self.exams is None else figures | {"accuracy": {}}  # it would be over chosen items

    def tables(self) -> list[Table]:
        report = self.report()
        irregular = irregular_table(
            (label, report["candidates"][label]["irregular"], {role: used[0] for role, used in probes.usage.items()})
            for label, probes in self.candidates.items()
        )
        if self.exams is not None:
            return [self.exams.table(report), failure_table(report), irregular]
        tables = [self._accuracies(report), self._orders(report), self._losses(report), *self._detector_tables(report)]
        return [*tables, failure_table(report), irregular]

    def _accuracies(self, report: dict[str, Any]) -> Table:
        used = [
            name for name in ACCURACIES if any(name in record["accuracy"] for record in report["candidates"].values())
        ]
        free = ["F1", "SE"] if "free" in used else []
        header = ["candidate", "n", *(ACCURACIES[name] for name in used), *free, "unanswered", "failed"]
        rows = []
        for label, record in report["candidates"].items():
            cells = [interval(record["accuracy"].get(name), 1) for name in used]
            answers = [record["accuracy"][name] for name in ("generate", "free") if name in record["accuracy"]]
            overlap = record["accuracy"].get("free", {}).get("f1", {})
            cells += [number(overlap.get("mean")), number(overlap.get("se"), 2)] if free else []
            silent = str(sum(answer["unanswered"] for answer in answers)) if answers else "–"
            rows.append([label, str(record["n"]), *cells, silent])
            rows[-1].append(str(record["failed"]))
        skipped = report["dataset"]["skipped"]
        dataset = report["dataset"]["name"] + (f" ({skipped} bad lines skipped)" if skipped else "")
        title = f"Accuracy on {dataset}, {report['shots']} shots, seed {report['seed']}, {tier_name(report['tier'])}"
        return (title, header, rows if used else [])

    def _orders(self, report: dict[str, Any]) -> Table:
        records = {label: record["orders"] for label, record in report["candidates"].items() if "orders" in record}
        rows = [
            [label, str(record["n"]), *(interval(record.get(name), 1) for name in ORDERS)]
            for label, record in records.items()
        ]
        return ("Accuracy by the order of options", ["candidate", "n", *ORDERS.values()], rows)

    def _losses(self, report: dict[str, Any]) -> Table:
        header = ["candidate", report["dataset"]["name"], "SE"]
        if report["against"]:
            header += [report["against"]["name"], "SE", "gap, members vs. non-members"]
        rows = []
        for label, record in report["candidates"].items():
            row = [label]
            for name in ("loss", "loss_against")[: 2 if report["against"] else 1]:
                loss = record.get(name, {})
                row += [number(loss.get("mean"), 3), number(loss.get("se"), 3)]
            rows.append([*row, interval(record.get("loss_gap"), 3)] if report["against"] else row)
        return ("LM loss per token, nats", header, rows if "loss" in report["methods"] else [])

    def _detector_tables(self, report: dict[str, Any]) -> list[Table]:
        by_candidate = {
            label: record["detectors"] for label, record in report["candidates"].items() if "detectors" in record
        }
        if not by_candidate:
            return []
        names = dict.fromkeys(name for detectors in by_candidate.values() for name in detectors)
        rows = [
            [name.replace("_", " "), *(interval(detectors.get(name), 3) for detectors in by_candidate.values())]
            for name in names
        ]
        return [("AUC, members vs. non-members", ["detector", *by_candidate], rows)]


def observe(results: Iterable[Mapping[str, Any]]) -> Observations:
    """Return the observations in all results of one candidate, on both sets, in any order, for the court."""
    observations = Observations()
    for result in sorted(results, key=lambda result: (result["second"], result["item"])):
        if "shard" in result:
            if "order" in result:
                observations.shards.append([result["order"]["published"], *result["order"]["shuffled"]])
            continue
        _add_item(observations.second if result["second"] else observations.benchmark, result)
        if (options := result.get("options")) is not None:
            observations.options.append([options["published"], *options["permuted"]])
            observations.letters.append(options["right"])
        elif (permuted := result.get("permute")) is not None:
            observations.letters.append(permuted["right"])
    return observations


def _add_item(results: SetResults, result: Mapping[str, Any]) -> None:
    answers = [result[method] for method in ANSWERING if method in result]
    scores = Signals(**result["signals"]).scores() if "signals" in result else {}
    context, samples, guess = result.get("context"), result.get("samples"), result.get("guess")
    results.add(
        result["item"],
        result.get("cluster") or cluster_name(result["item"]),
        right=float(answers[0]["right"]) if answers else None,
        loss=-scores["loss"] if "loss" in scores else None,
        min_k_plus_plus=scores.get(_DETECTOR),
        context_change=context["within"] - context["alone"] if context else None,
        peak=samples["peak"] if samples else None,
        masked=guess["choice"] if guess else None,
        guesses=guess["answer"] if guess else None,
    )
