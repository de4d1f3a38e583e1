//! parshall: finds out why traffic on a Linux host is slow, proves it with evidence from the kernel, and fixes it.
#![forbid(unsafe_code)]
#![allow(dead_code)]

mod cli;
mod diagnose;
mod doctor;
mod error;
mod lab;
mod report;

fn main() {}
