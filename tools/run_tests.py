#!/usr/bin/env python3
"""Runs the tests of a build folder through ctest, prints a line for each, and counts what they counted.

    python3 tools/run_tests.py build/release [--label quick] [--match REGEX] [--exclude-label LABEL] [--jobs N]

A ctest test is a program with many cases inside. Its cases are read from what it printed: the last line
`N passed, N failed, N skipped` of the kernel harness, or cmocka's summaries; a test that prints neither counts as one.
The last line printed here is the sum, and the exit code is 1 if a test failed or if none ran.
"""
import argparse
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

HARNESS = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?\s*$", re.MULTILINE)
CMOCKA = re.compile(r"^\[\s+(PASSED|FAILED|SKIPPED)\s+\] (\d+) test\(s\)", re.MULTILINE)


def cases(status, text):
    """(passed, failed, skipped) of one ctest test."""
    lines = HARNESS.findall(text)
    summaries = CMOCKA.findall(text)
    if lines:
        counts = [int(n or 0) for n in lines[-1]]
    elif summaries:
        counts = [sum(int(n) for word, n in summaries if word == which) for which in ("PASSED", "FAILED", "SKIPPED")]
    else:
        counts = [int(status == "run"), 0, int(status in ("notrun", "disabled"))]
    if status == "fail" and counts[1] == 0:
        counts[1] = 1  # a crash, a time limit, or a leak after the last case
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--label", help="only tests with this label; several: 'quick|train'")
    parser.add_argument("--exclude-label", help="no tests with this label")
    parser.add_argument("--match", help="only tests whose name matches this regular expression")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--timeout", type=int, default=1200, help="seconds for one test")
    options = parser.parse_args()

    report = os.path.join(os.path.abspath(options.build), "tests.xml")
    if os.path.exists(report):
        os.remove(report)
    command = ["ctest", "--test-dir", options.build, "--parallel", str(options.jobs), "--timeout", str(options.timeout),
               "--output-junit", report, "--test-output-size-passed", "100000000", "--test-output-size-failed", "100000000"]
    if options.label:
        command += ["--label-regex", "^(%s)$" % options.label]
    if options.exclude_label:
        command += ["--label-exclude", "^(%s)$" % options.exclude_label]
    if options.match:
        command += ["--tests-regex", options.match]

    start = time.monotonic()
    ctest = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if not os.path.exists(report):
        print(ctest.stdout)
        print("run_tests.py: ctest wrote no report")
        return 1

    total = [0, 0, 0]
    failed = []
    for test in sorted(ElementTree.parse(report).getroot().iter("testcase"), key=lambda test: test.get("name")):
        status, text = test.get("status"), test.findtext("system-out") or ""
        if status == "notrun" and "Unable to find executable" in text:
            status = "fail"
        counts = cases(status, text)
        total = [a + b for a, b in zip(total, counts)]
        mark = {"run": "ok", "fail": "FAIL"}.get(status, "skip")
        print("%-4s %7.1f s  %-44s %5d passed, %d failed, %d skipped" % (mark, float(test.get("time", 0)), test.get("name"), *counts))
        if mark == "FAIL":
            failed.append((test.get("name"), text))

    for name, text in failed:
        print("\n---- %s: the end of its output ----" % name)
        print("\n".join(text.rstrip().splitlines()[-80:]))
    if sum(total) == 0:
        print("run_tests.py: no test ran")
        return 1
    print("\n%.0f s" % (time.monotonic() - start))
    print("%d passed, %d failed, %d skipped" % tuple(total))
    return 1 if failed or ctest.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
