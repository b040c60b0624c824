"""A suite's gate as JUnit XML: a test case for each threshold of each system, and one for the conversations.

What never belongs here: deciding anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as Xml

from viva.engine.errors import ConfigurationError
from viva.engine.files import write_atomically
from viva.reports.controls import harmless

if TYPE_CHECKING:
    from .report import SuiteAggregate


def write_junit(aggregate: SuiteAggregate, path: Path, run: Path) -> None:
    """Write the gate of a run.

    :raises ConfigurationError: the file cannot be written.
    """
    report = aggregate.report()
    checks = aggregate.gate()
    suites = Xml.Element("testsuites", name="viva")
    for label, one in report["candidates"].items():
        own = [check for check in checks if check.system == label]
        broken = sum(check.broken for check in own)
        told = {
            "name": _text(f"{report['suite']}.{label}"),
            "tests": str(len(own) + 1),
            "failures": str(broken),
            "errors": str(int(one["failed"] > 0)),
        }
        suite = Xml.SubElement(suites, "testsuite", told)
        properties = Xml.SubElement(suite, "properties")
        facts = {"run": str(run), "conversations": str(one["conversations"]), "seed": str(report["seed"])}
        for name, value in facts.items():
            Xml.SubElement(properties, "property", name=name, value=_text(value))
        for check in own:
            case = Xml.SubElement(suite, "testcase", classname=told["name"], name=_text(check.name), time="0")
            if check.broken:
                Xml.SubElement(case, "failure", message=_text(check.told()), type="ThresholdBroken").text = _text(
                    check.told()
                )
        case = Xml.SubElement(suite, "testcase", classname=told["name"], name="every conversation was held", time="0")
        if one["failed"]:
            reasons = [f"{count} x {reason}" for reason, count in one["failure_reasons"].items()]
            message = f"{one['failed']} conversations failed"
            Xml.SubElement(case, "error", message=message, type="ConversationFailed").text = _text("\n".join(reasons))
        if report["untested"]:
            Xml.SubElement(case, "system-out").text = f"{report['untested']} tests were not made"
    Xml.indent(suites)
    try:
        write_atomically(path, Xml.tostring(suites, encoding="utf-8", xml_declaration=True) + b"\n")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror}") from None


def _text(value: str) -> str:
    """Without what XML cannot hold."""
    return "".join(one if one >= " " or one in "\t\n" else " " for one in harmless(value))
