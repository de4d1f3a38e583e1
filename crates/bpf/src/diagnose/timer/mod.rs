//! The timer probe sends no records, so there is nothing to decode. It leaves marks in a map that the flow probe reads, for the
//! releases `RxAckDelayed`, `RxDataAfterOwnDelack` and `WriteTimer`.
