"""The matrix of `test_mutants.py`, at the end of a run."""

import json

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The matrix of `test_mutants.py`: which checks caught which fault. It comes from the reports, so from any worker."""
    rows = [
        json.loads(value)
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == "mutant" and report.when == "call"
    ]
    if not rows:
        return
    checks = list(rows[0][2])
    wide = max(len(name) for name, _, _ in rows)
    terminalreporter.section("mutants: X caught by the check meant for it, x by another one")
    terminalreporter.write_line(f"{'':{wide}}  {'  '.join(checks)}")
    for name, meant, held in sorted(rows, key=lambda row: checks.index(row[1])):
        marks = ["." if held[check] else "X" if check == meant else "x" for check in checks]
        terminalreporter.write_line(
            f"{name:{wide}}  {'  '.join(f'{mark:^{len(check)}}' for mark, check in zip(marks, checks, strict=True))}"
        )
