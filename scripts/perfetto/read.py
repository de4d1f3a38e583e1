#!/usr/bin/env python3
"""Reads files of `--perfetto` with Perfetto's own definitions (the wheel `perfetto`), and checks that they hold together: read.py FILE..."""
import pathlib
import sys

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb


def check(path):
    trace = pb.Trace()
    data = pathlib.Path(path).read_bytes()
    trace.ParseFromString(data)
    # Without fields that its definitions do not know; and integers that they write otherwise have another length.
    trace.DiscardUnknownFields()
    assert len(trace.SerializeToString()) == len(data), f"{path}: not what Perfetto's definitions write"
    tracks, names, frames, stacks = set(), set(), set(), set()
    open_slices, last, running, flows, ends = {}, {}, {}, set(), set()
    events = 0
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id > 0
        interned = packet.interned_data
        names.update(name.iid for name in interned.event_names)
        frames.update(frame.iid for frame in interned.frames)
        for stack in interned.callstacks:
            assert set(stack.frame_ids) <= frames, "frames of a stack are known"
            stacks.add(stack.iid)
        if packet.HasField("track_descriptor"):
            found = packet.track_descriptor
            assert not found.HasField("parent_uuid") or found.parent_uuid in tracks, "a parent comes first"
            tracks.add(found.uuid)
        if packet.HasField("track_event"):
            event, track = packet.track_event, packet.track_event.track_uuid
            events += 1
            assert track in tracks and packet.timestamp >= last.get(track, 0), "times of a track rise"
            last[track] = packet.timestamp
            assert event.type == pb.TrackEvent.TYPE_SLICE_END or event.name_iid in names
            assert not event.HasField("callstack_iid") or event.callstack_iid in stacks
            flows.update(event.flow_ids)
            ends.update(event.terminating_flow_ids)
            if event.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
                open_slices[track] = open_slices.get(track, 0) + 1
            elif event.type == pb.TrackEvent.TYPE_SLICE_END:
                open_slices[track] -= 1
                assert open_slices[track] >= 0, "what ends has begun"
        if packet.HasField("perf_sample"):
            assert packet.perf_sample.callstack_iid in stacks
        if packet.HasField("ftrace_events"):
            cpu = packet.ftrace_events.cpu
            for event in packet.ftrace_events.event:
                events += 1
                if event.HasField("sched_switch"):
                    at, now = running.get(cpu, (0, 0))
                    assert event.timestamp >= at and event.sched_switch.prev_pid == now, "who leaves a CPU was on it"
                    running[cpu] = (event.timestamp, event.sched_switch.next_pid)
    assert not any(open_slices.values()), "every slice ends"
    assert ends <= flows, "an arrow that ends has begun"
    print(f"{path}: {len(trace.packet)} packets, {len(tracks)} tracks, {events} events, {len(flows)} arrows")


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    for argument in sys.argv[1:]:
        check(argument)
