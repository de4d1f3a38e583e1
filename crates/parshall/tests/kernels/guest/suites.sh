# Other suites of the repository, in part: their binaries run here as they run on a host.

parshall_path=$(cat /etc/parshall-path)
mkdir -p "$(dirname "$parshall_path")"
ln -s /usr/bin/parshall "$parshall_path"
export RUST_TEST_THREADS=1

# The cases in which bytes move both ways, and those in which a side closes early.
for engine in copy splice auto; do
    : >/tmp/report.out
    : >/tmp/report.err
    for only in "both ways at once, in pieces" "the configured engine" "half-closes, " "both half-close"; do
        RELAY_ENGINE=$engine RELAY_CASE="$only" timeout -s KILL 200 relay --include-ignored --nocapture \
            conformance::behaviours_by_engine >>/tmp/report.out 2>&1 </dev/null || echo "error: $only" >>/tmp/report.err
    done
    finished relay/$engine "$(wc -l </tmp/report.err)"
done

suite() {
    name="$1"
    shift
    timeout -s KILL 900 "$@" >/tmp/report.out 2>&1 </dev/null
    code=$?
    : >/tmp/report.err
    finished "$name" $code
}

suite tunnel-roams tunnel --include-ignored --nocapture _carry_streams_and_roam --skip wireguard_go --skip boringtun
suite tunnel-rekeys tunnel --include-ignored --nocapture are_replaced_under_load --skip wireguard_go --skip boringtun
suite probes-closing probes --nocapture closing::
suite sockets-agree together --nocapture sockets::the_backends_agree
suite sockets sockets --nocapture
