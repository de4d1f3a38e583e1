# A service that uses io_uring.

/usr/bin/uring /tmp/uring &
wait_for_file /tmp/uring
report uring parshall attach --pid "$(cat /tmp/uring)" --for 3s --format json
kill $!
