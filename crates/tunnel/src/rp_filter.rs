//! Keeps the kernel's check of source addresses (rp_filter) from dropping the datagrams of peers where a tunnel has a default route.
use std::fs;
use std::path::Path;

use anyhow::Context;
use parshall_core::tunnel::{QuickConfig, marks_table, restored_marks, strict_rp_filter};
use parshall_host::error::UserError;

use crate::nft;
use crate::undo::{Step, Undo};

const CONF: &str = "/proc/sys/net/ipv4/conf";

/// Has the check look up the way back with the mark of a packet, as wg-quick does. Where it is strict, answers to packets with the
/// mark get it too. Fails where that cannot be done, unless hooks of the file may do it.
pub fn admit_answers(name: &str, config: &QuickConfig, mark: u32, undo: &mut Undo) -> anyhow::Result<()> {
    let marked = expect_marks();
    let values = values();
    let Some(strict) = strict_rp_filter(&values, name) else {
        if let Err(error) = marked {
            tracing::warn!("{error:#}");
        }
        return Ok(());
    };
    let step = Step::Nft(marks_table(mark));
    if !undo.claim(&step) {
        undo.push(step.clone())?;
    }
    let Err(error) = marked.and_then(|()| nft::load(&restored_marks(mark))) else { return Ok(()) };
    undo.forget(&[step])?;
    let what = format!(
        "net.ipv4.conf.{strict}.rp_filter is 1 (strict), which drops what peers send to a tunnel with a default route, and the marks \
         that would admit it cannot be restored: {error:#}"
    );
    let hint = "type `sysctl -w net.ipv4.conf.all.rp_filter=2`, or install nftables";
    if config.pre_up.is_empty() && config.post_up.is_empty() {
        return Err(UserError::new(what, hint).into());
    }
    tracing::warn!("{what}; a hook of the file has to do it; hint: {hint}");
    Ok(())
}

/// Sets `src_valid_mark`. It stays: other tunnels may have come to need it.
fn expect_marks() -> anyhow::Result<()> {
    let path = format!("{CONF}/all/src_valid_mark");
    if fs::read_to_string(&path).is_ok_and(|value| value.trim() != "0") {
        return Ok(());
    }
    fs::write(path, "1").context("net.ipv4.conf.all.src_valid_mark could not be set")
}

/// `rp_filter` of each interface of this network namespace.
fn values() -> Vec<(String, u8)> {
    let value = |name: &Path| fs::read_to_string(name.join("rp_filter")).ok()?.trim().parse().ok();
    let entries = fs::read_dir(CONF).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.file_name().into_string().ok()?, value(&entry.path())?))).collect()
}
