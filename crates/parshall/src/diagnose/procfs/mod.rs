//! To be written: the rung below BPF.
mod flow_state;
mod flow_track;
