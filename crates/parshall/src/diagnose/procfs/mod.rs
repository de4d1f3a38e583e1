//! To be written: the rung below BPF.
