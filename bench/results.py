"""Writes figures into bench/RESULTS.md, each between its own markers, with the host they were taken on."""
import datetime
import os
import platform
import re

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "RESULTS.md")


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def write(section, how, text):
    """Replaces the section's figures and prints them."""
    host = f"Linux {platform.release().split('-')[0]}, {os.cpu_count()} CPUs, {datetime.date.today().isoformat()}"
    body = f"{host}. {how}\n\n{text}"
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    with open(PATH, encoding="utf-8") as f:
        page = f.read()
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
    if not pattern.search(page):
        raise SystemExit(f"{PATH} has no section {section}")
    page = pattern.sub(lambda _: f"{begin}\n{body}\n{end}", page)
    with open(PATH, "w", encoding="utf-8") as f:
        f.write(page)
    print(body)
