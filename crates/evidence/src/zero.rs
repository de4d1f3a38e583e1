//! What serde leaves out.

/// For `skip_serializing_if`.
#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference.
pub fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The same for a share.
#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference.
pub fn is_zero_share(share: &f64) -> bool {
    *share == 0.0
}
