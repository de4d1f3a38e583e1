//! Where the time of a service's requests went: each request is followed backwards from its reply, through whoever ended each
//! wait, to its arrival.
pub mod timeline;
