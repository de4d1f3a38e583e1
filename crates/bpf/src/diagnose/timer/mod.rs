//! The timer probe only leaves marks for the flow probe (`RxAckDelayed`, `RxDataAfterOwnDelack`, `WriteTimer`); nothing
//! of it travels, so there is nothing to decode.
