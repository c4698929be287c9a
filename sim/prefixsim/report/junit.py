"""JUnit XML: one test suite a scenario file, one test case a check."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from prefixsim.report.checks import FileResult, counts

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(results: list[FileResult]) -> str:
    """The report, as text with an XML declaration."""
    _, failed, broken = counts(results)
    total = sum(len(r.checks) + (r.error is not None) for r in results)
    root = ET.Element("testsuites", name="prefixsim check", tests=str(total), failures=str(failed), errors=str(broken))
    for r in results:
        suite = ET.SubElement(
            root,
            "testsuite",
            name=_xml(r.scenario),
            tests=str(len(r.checks) + (r.error is not None)),
            failures=str(sum(not c.ok for c in r.checks)),
            errors=str(int(r.error is not None)),
            time=f"{r.wall_s:.3f}",
        )
        for c in r.checks:
            case = ET.SubElement(
                suite,
                "testcase",
                classname=_xml(r.scenario),
                name=_xml(f"{c.kind}: {c.metric} {c.wanted}"),
                file=_xml(r.file),
            )
            if c.line is not None:
                case.set("line", str(c.line))
            if not c.ok:
                failure = ET.SubElement(case, "failure", message=_xml(c.message), type=c.kind)
                failure.text = _xml("\n".join([c.message, *r.reasons]))
        if r.error is not None:
            case = ET.SubElement(suite, "testcase", classname=_xml(r.scenario), name="runs", file=_xml(r.file))
            ET.SubElement(case, "error", message=_xml(r.error.splitlines()[0]), type="could not run").text = _xml(
                r.error
            )
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _xml(text: str) -> str:
    """Characters that XML 1.0 cannot hold are shown as \\xNN."""
    return _NOT_XML.sub(lambda m: f"\\x{ord(m.group()):02x}", text)
