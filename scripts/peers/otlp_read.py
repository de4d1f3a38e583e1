"""Decodes an OTLP metrics request (gzip'd protobuf) with the messages of opentelemetry-proto, and prints a line per point."""
import gzip
import sys

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest


def attributes(pairs):
    return ",".join(sorted(f"{pair.key}={pair.value.string_value}" for pair in pairs))


def main():
    with gzip.open(sys.argv[1]) as file:
        request = ExportMetricsServiceRequest.FromString(file.read())
    for resource in request.resource_metrics:
        print("resource", attributes(resource.resource.attributes))
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                show(metric)


def show(metric):
    kind = metric.WhichOneof("data")
    if kind == "gauge":
        for point in metric.gauge.data_points:
            print(metric.name, metric.unit, "gauge", attributes(point.attributes), point.as_int)
    elif kind == "sum":
        assert metric.sum.is_monotonic and metric.sum.aggregation_temporality == 2
        for point in metric.sum.data_points:
            over = point.time_unix_nano - point.start_time_unix_nano
            print(metric.name, metric.unit, "cumulative-monotonic", attributes(point.attributes), point.as_int,
                  "over", over, "ns")
    elif kind == "histogram":
        assert metric.histogram.aggregation_temporality == 2
        for point in metric.histogram.data_points:
            assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
            assert sum(point.bucket_counts) == point.count
            filled = [i for i, n in enumerate(point.bucket_counts) if n]
            if filled:
                bound = (list(point.explicit_bounds) + [float("inf")])[filled[0]]
                print(metric.name, metric.unit, "cumulative-histogram", attributes(point.attributes), "count",
                      point.count, "sum", point.sum, "under", bound, point.bucket_counts[filled[0]])
    else:
        sys.exit(f"{metric.name} is {kind}")


main()
