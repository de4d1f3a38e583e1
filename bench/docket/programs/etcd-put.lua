-- For wrk: writes keys through the HTTP interface of etcd, and prints the figures as load.c does. Keys and values are in base64.
wrk.method = "POST"
wrk.path = "/v3/kv/put"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"key": "cmVnaXN0cnkvbGVhc2VzL25vZGUtMQ==", "value": "eyJob2xkZXIiOiJub2RlLTEifQ=="}'

function done(summary, latency)
    io.write(string.format('{"requests": %d, "errors": %d, "rate": %.1f, "mean_ms": %.3f, "p50_ms": %.3f, "p99_ms": %.3f}\n',
        summary.requests, summary.errors.status + summary.errors.timeout, summary.requests / summary.duration * 1e6,
        latency.mean / 1e3, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
