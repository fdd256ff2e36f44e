//! Guards, renewal and orphaned grants, written once for all primitives.

pub(crate) mod any;
pub(crate) mod confirmed;
pub(crate) mod lease_guard;
pub(crate) mod orphan;
pub(crate) mod outcome;
pub(crate) mod renewal;
mod sentences;
