//! The nice value of the threads.
use parshall_host::error::UserError;

use super::definition::{Change, Kind, On, own_sysctl};
use crate::trial::place::ThreadSetting;

pub const KIND: Kind = Kind {
    name: "nice",
    value: "N",
    help: "nice value of the threads, from -20 (first) to 19 (last)",
    make: |value| {
        let Some(nice) = value.parse::<i32>().ok().filter(|nice| (-20..=19).contains(nice)) else {
            return Err(UserError::new(format!("`{value}` is not a nice value"), "write a number from -20 to 19"));
        };
        let mut change = Change::new(
            format!("nice={nice}"),
            format!("nice={nice}"),
            On::Threads(ThreadSetting::Nice),
            nice.to_string(),
            format!("Start the service with `nice -n {nice}`, or set Nice={nice} in its systemd unit."),
        );
        change.check = check;
        Ok(change)
    },
};

fn check(_: &Change) -> Result<Vec<String>, UserError> {
    if !parshall_sys::child::is_root() {
        let hint = "run it as root: without CAP_SYS_NICE a nice value can be raised and not lowered again";
        return Err(UserError::new("the change could not be reverted", hint));
    }
    let grouped = own_sysctl("kernel.sched_autogroup_enabled") == Some(1);
    Ok(grouped
        .then(|| "kernel.sched_autogroup_enabled is on: nice counts only between processes of one session".to_owned())
        .into_iter()
        .collect())
}
