"""Reads metrics with the parsers of Prometheus' own Python client and prints every sample in one line."""
import sys

from prometheus_client.openmetrics.parser import text_string_to_metric_families


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            print(family.type, sample.name, labels.encode("unicode_escape").decode(), sample.value)


main()
