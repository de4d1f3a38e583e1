#!/bin/sh
# Stops and continues a process: stop.sh PID STOPPED_S RUNNING_S. Does nothing if STOPPED_S is 0.
trap 'kill -CONT "$1"; exit' TERM
while [ "$2" != 0 ]; do
    kill -STOP "$1"
    sleep "$2"
    kill -CONT "$1"
    sleep "$3"
done
sleep 1000
